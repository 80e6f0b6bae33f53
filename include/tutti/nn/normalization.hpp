#pragma once

#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/normalization.h>

/// Layer and group normalisation that surgery can replace.
namespace tutti::nn {

/// torch::nn::LayerNorm, replaceable: over the last dimensions; parameters `weight`, `bias`.
using LayerNormImpl = Replaceable<torch::nn::LayerNormImpl>;
TORCH_MODULE(LayerNorm);

/// torch::nn::GroupNorm, replaceable: [N, C, ...], same shape out; parameters `weight`, `bias`.
using GroupNormImpl = Replaceable<torch::nn::GroupNormImpl>;
TORCH_MODULE(GroupNorm);

}  // namespace tutti::nn
