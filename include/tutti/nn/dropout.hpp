// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/dropout.h>

/// Dropout that surgery can replace.
namespace tutti::nn {

/// torch::nn::Dropout, replaceable: any shape, same shape out.
using DropoutImpl = Replaceable<torch::nn::DropoutImpl>;
TORCH_MODULE(Dropout);

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(DropoutImpl);
#endif
