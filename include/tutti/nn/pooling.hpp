#pragma once

#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/pooling.h>

/// Pooling that surgery can replace.
namespace tutti::nn {

/// torch::nn::MaxPool2d, replaceable: [N, C, H, W] to [N, C, H', W'].
using MaxPool2dImpl = Replaceable<torch::nn::MaxPool2dImpl>;
TORCH_MODULE(MaxPool2d);

/// torch::nn::AdaptiveAvgPool2d, replaceable: [N, C, H, W] to [N, C, output_size].
using AdaptiveAvgPool2dImpl = Replaceable<torch::nn::AdaptiveAvgPool2dImpl>;
TORCH_MODULE(AdaptiveAvgPool2d);

}  // namespace tutti::nn
