// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

/// Batch normalisation over the batches of all ranks.
///
/// Source: PyTorch, `torch.nn.SyncBatchNorm`.
namespace tutti {

/// Replaces a tensor, on every rank, by the sum of all ranks' tensors. A collective: all ranks call
/// it in the same order.
using SumOverRanks = std::function<void(const at::Tensor&)>;

namespace functional {

/// What sync_batch_norm() returns.
struct SyncBatchNormResult {
  at::Tensor output{};    ///< [N, C, ...], of x's type
  at::Tensor mean{};      ///< [C], over all ranks; double
  at::Tensor variance{};  ///< [C], the same, divided by the count
  at::Tensor count{};     ///< [1], how many numbers of a channel all ranks have; double
};

/// Batch normalisation in training, with the mean and variance of all ranks' batches.
///
/// x: [N, C, ...], floating; N may differ between ranks and be 0. weight, bias: [C], or undefined.
/// Gradients of x are those of the whole batch, for which the backward pass sums over the ranks
/// once more; those of weight and bias are of this rank's examples alone, as data parallel training
/// expects. Throws c10::Error when x has fewer than two dimensions and, on a CPU, when a channel
/// has one number over all ranks; in the backward pass where gradients of gradients are asked for.
/// Source: PyTorch, `torch.nn.SyncBatchNorm`.
SyncBatchNormResult sync_batch_norm(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias, double eps, const SumOverRanks& sum);

}  // namespace functional

namespace nn {

/// What the layers below have in common.
class SyncBatchNorm {
 public:
  virtual ~SyncBatchNorm();
};

/// The batch normalisation `Layer`, which in training normalises with the statistics of all ranks'
/// batches; in evaluation it is the plain layer.
///
/// It is a layer of the same class, with the same parameters, buffers and names, so that
/// checkpoints fit both.
template <class Layer>
class SyncBatchNormImpl : public Layer::Impl, public SyncBatchNorm {
 public:
  using Plain = typename Layer::Impl::Plain;

  /// Over the tensors of `layer`. sum: over the ranks; it is called in every pass of the training,
  /// forward and backward.
  SyncBatchNormImpl(const Plain& layer, SumOverRanks sum)
      : Layer::Impl(layer), sum_(std::move(sum)) {}

  /// x: [N, C, ...], as the layer takes. Returns the same shape.
  at::Tensor compute(const at::Tensor& x) override {
    if (!this->is_training()) {
      return Layer::Impl::compute(x);
    }
    const auto found =
        functional::sync_batch_norm(x, this->weight, this->bias, this->options.eps(), sum_);
    if (this->options.track_running_stats()) {
      learn(found);
    }
    return found.output;
  }

  std::shared_ptr<Replaceable<Plain>> twin() const override {
    return Replaceable<Plain>::twin_of(*this);
  }

 private:
  void learn(const functional::SyncBatchNormResult& found) {
    const c10::NoGradGuard no_grad;
    this->num_batches_tracked.add_(1);
    const auto momentum = this->options.momentum();
    const double step =
        momentum ? *momentum : 1.0 / this->num_batches_tracked.template item<double>();
    const at::Tensor unbiased = found.variance.mul(found.count / (found.count - 1));
    this->running_mean.lerp_(found.mean.to(this->running_mean.scalar_type()), step);
    this->running_var.lerp_(unbiased.to(this->running_var.scalar_type()), step);
  }

  SumOverRanks sum_;
};

using SyncBatchNorm1d = SyncBatchNormImpl<BatchNorm1d>;  ///< for [N, C] and [N, C, L]
using SyncBatchNorm2d = SyncBatchNormImpl<BatchNorm2d>;  ///< for [N, C, H, W]
using SyncBatchNorm3d = SyncBatchNormImpl<BatchNorm3d>;  ///< for [N, C, D, H, W]

}  // namespace nn

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/nn/sync_batchnorm.inl.hpp>
#endif
