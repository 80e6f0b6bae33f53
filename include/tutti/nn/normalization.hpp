// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/normalization.h>

/// Layer and group normalisation that surgery can replace.
namespace tutti::nn {

namespace detail {

/// ATen's kernel for these would take several times as long as one for [N, C, H, W] in order, with
/// the copies there and back: on a CPU it goes through the channels of a pixel's group by eights,
/// one by one where they are no multiple of that. It has another kernel for larger images.
inline bool is_slow_group_norm(const at::Tensor& x, std::int64_t groups) {
  constexpr std::int64_t at_once = 8, small_image = 1024;  // channels, pixels
  return x.dim() == 4 && x.is_cpu() && x.scalar_type() == at::kFloat &&
         x.size(2) * x.size(3) < small_image && x.size(1) / groups % at_once != 0 &&
         x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

}  // namespace detail

/// torch::nn::LayerNorm, replaceable: over the last dimensions; parameters `weight`, `bias`.
using LayerNormImpl = Replaceable<torch::nn::LayerNormImpl>;
TORCH_MODULE(LayerNorm);

/// torch::nn::GroupNorm, replaceable: [N, C, ...], same shape and memory format out; parameters
/// `weight`, `bias`.
using GroupNormImpl = Replaceable<torch::nn::GroupNormImpl>;
template <>
inline at::Tensor GroupNormImpl::compute(const at::Tensor& x) {
  if (detail::is_slow_group_norm(x, options.num_groups())) {
    return torch::nn::GroupNormImpl::forward(x.contiguous())
        .contiguous(at::MemoryFormat::ChannelsLast);
  }
  return torch::nn::GroupNormImpl::forward(x);
}
TORCH_MODULE(GroupNorm);

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(LayerNormImpl);
TUTTI_LAYER(GroupNormImpl);
#endif
