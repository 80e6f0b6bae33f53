// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/nn/detail/batch_norm.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/batchnorm.h>

/// Batch normalisation that surgery can replace. In training on a CPU, fp32 in [N, C, ...] order or
/// with the channels last is normalised by loops of the library's own: equal to LibTorch's but for
/// rounding, with the mean and variance summed in double, and up to several times as fast.
namespace tutti::nn {

/// torch::nn::BatchNorm1d, replaceable: [N, C] or [N, C, L], same shape out.
///
/// Parameters `weight`, `bias`; buffers `running_mean`, `running_var`, `num_batches_tracked`.
using BatchNorm1dImpl = Replaceable<torch::nn::BatchNorm1dImpl>;
template <>
inline at::Tensor BatchNorm1dImpl::compute(const at::Tensor& x) {
  return detail::is_host_batch_norm(*this, x, x.dim() == 2 ? 2 : 3)
             ? detail::host_batch_norm(*this, x)
             : torch::nn::BatchNorm1dImpl::forward(x);
}
TORCH_MODULE(BatchNorm1d);

/// torch::nn::BatchNorm2d, replaceable: [N, C, H, W], same shape out; tensors as BatchNorm1d.
using BatchNorm2dImpl = Replaceable<torch::nn::BatchNorm2dImpl>;
template <>
inline at::Tensor BatchNorm2dImpl::compute(const at::Tensor& x) {
  return detail::is_host_batch_norm(*this, x, 4) ? detail::host_batch_norm(*this, x)
                                                 : torch::nn::BatchNorm2dImpl::forward(x);
}
TORCH_MODULE(BatchNorm2d);

/// torch::nn::BatchNorm3d, replaceable: [N, C, D, H, W], same shape out; tensors as BatchNorm1d.
using BatchNorm3dImpl = Replaceable<torch::nn::BatchNorm3dImpl>;
template <>
inline at::Tensor BatchNorm3dImpl::compute(const at::Tensor& x) {
  return detail::is_host_batch_norm(*this, x, 5) ? detail::host_batch_norm(*this, x)
                                                 : torch::nn::BatchNorm3dImpl::forward(x);
}
TORCH_MODULE(BatchNorm3d);

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(BatchNorm1dImpl);
TUTTI_LAYER(BatchNorm2dImpl);
TUTTI_LAYER(BatchNorm3dImpl);
#endif
