// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/linear.h>

/// The linear layer that surgery can replace.
namespace tutti::nn {

/// torch::nn::Linear, replaceable: [..., in] to [..., out]; parameters `weight`, `bias`.
using LinearImpl = Replaceable<torch::nn::LinearImpl>;
TORCH_MODULE(Linear);

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(LinearImpl);
#endif
