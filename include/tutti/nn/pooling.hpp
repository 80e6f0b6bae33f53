// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/nn/detail/max_pool.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/pooling.h>

/// Pooling that surgery can replace. On a CPU, fp32 in [N, C, H, W] order or with the channels last
/// is max-pooled by loops of the library's own, which give what LibTorch's give in a fraction of
/// their time.
namespace tutti::nn {

/// torch::nn::MaxPool2d, replaceable: [N, C, H, W] to [N, C, H', W'].
using MaxPool2dImpl = Replaceable<torch::nn::MaxPool2dImpl>;
template <>
inline at::Tensor MaxPool2dImpl::compute(const at::Tensor& x) {
  const at::Tensor y = detail::host_max_pool(x, {.kernel = *options.kernel_size(),
                                                 .stride = *options.stride(),
                                                 .padding = *options.padding(),
                                                 .dilation = *options.dilation(),
                                                 .ceil_mode = options.ceil_mode()});
  return y.defined() ? y : torch::nn::MaxPool2dImpl::forward(x);
}
TORCH_MODULE(MaxPool2d);

/// torch::nn::AdaptiveAvgPool2d, replaceable: [N, C, H, W] to [N, C, output_size].
using AdaptiveAvgPool2dImpl = Replaceable<torch::nn::AdaptiveAvgPool2dImpl>;
TORCH_MODULE(AdaptiveAvgPool2d);

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(MaxPool2dImpl);
TUTTI_LAYER(AdaptiveAvgPool2dImpl);
#endif
