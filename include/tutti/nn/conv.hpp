// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/conv.h>

/// Convolutions that surgery can replace.
namespace tutti::nn {

/// torch::nn::Conv1d, replaceable: [N, in, L] to [N, out, L']; parameters `weight`, `bias`.
using Conv1dImpl = Replaceable<torch::nn::Conv1dImpl>;
TORCH_MODULE(Conv1d);

/// torch::nn::Conv2d, replaceable: [N, in, H, W] to [N, out, H', W']; parameters `weight`, `bias`.
using Conv2dImpl = Replaceable<torch::nn::Conv2dImpl>;
TORCH_MODULE(Conv2d);

/// torch::nn::Conv3d, replaceable: [N, in, D, H, W] to [N, out, D', H', W']; parameters as above.
using Conv3dImpl = Replaceable<torch::nn::Conv3dImpl>;
TORCH_MODULE(Conv3d);

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(Conv1dImpl);
TUTTI_LAYER(Conv2dImpl);
TUTTI_LAYER(Conv3dImpl);
#endif
