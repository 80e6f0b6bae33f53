// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

/// Batch normalisation over parts of a batch.
///
/// Source: Hoffer et al., "Train longer, generalize better", NeurIPS 2017.
namespace tutti::nn {

/// What the wrappers below have in common; a layer inside one is not wrapped again.
class GhostBatchNorm : public Substitute {
 public:
  ~GhostBatchNorm() override;
  using Substitute::Substitute;

  /// How many parts of at most `size` examples n of them make.
  static std::int64_t parts(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
};

/// The batch normalisation `Layer`, which in training normalises parts of a batch on their own; in
/// evaluation, also of `batchnorm` alone, it is the plain layer, whatever the batch. One without
/// running statistics normalises parts in evaluation too.
///
/// The layer is the child `batchnorm`, over the tensors of the old one. Each part moves the running
/// statistics, with the momentum divided by the number of parts.
template <class Layer>
class GhostBatchNormImpl : public GhostBatchNorm {
 public:
  using Plain = typename Layer::Impl::Plain;

  /// ghost_batch_size: examples of a part at most; >= 1.
  explicit GhostBatchNormImpl(const Plain& layer, std::int64_t ghost_batch_size = 32)
      : batchnorm(register_module("batchnorm", Layer(twin(layer)))), ghost_(ghost_batch_size) {}

  /// x: [N, C, ...], as the layer takes. Returns the same shape.
  /// In training: throws c10::Error (ValueError) when N is below ghost_batch_size, or a part would
  /// have one number per channel.
  at::Tensor forward(const at::Tensor& x) {
    const bool training = this->is_training() && batchnorm->is_training();
    if (!training && batchnorm->running_mean.defined()) {
      return batchnorm(x);
    }
    const std::int64_t n = x.size(0);
    TUTTI_CHECK_VALUE(!training || n >= ghost_, "GhostBatchNorm: a batch of ", n,
                      " examples is smaller than ", "ghost_batch_size ", ghost_,
                      "; lower that, or leave out the incomplete ",
                      "last batch of an epoch (drop_last) and check the microbatch size");
    const std::int64_t count = parts(n, ghost_);
    if (count <= 1) {
      return batchnorm(x);
    }
    const std::int64_t size = parts(n, count);
    const std::int64_t per_row = x.numel() / std::max<std::int64_t>(n * x.size(1), 1);
    TUTTI_CHECK_VALUE(size * per_row != 1, "GhostBatchNorm: ghost_batch_size is ", ghost_,
                      " and x is ", x.sizes(), ", one number per channel; take 2 or more");
    // On a CPU a call costs less than regrouping, unless there are many.
    if (n % count == 0 && (!x.is_cpu() || count > 8) && is_ordinary(x)) {
      return together(x, count);
    }
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(count), size);
    sizes.back() = n - (count - 1) * size;
    if (sizes.back() * per_row == 1) {  // has no variance: joins the part before it
      sizes.pop_back();
      ++sizes.back();
    }
    return one_by_one(x, sizes);
  }

  Layer batchnorm;

 private:
  static constexpr std::int64_t dims = std::is_same_v<Layer, BatchNorm3d>   ? 5
                                       : std::is_same_v<Layer, BatchNorm2d> ? 4
                                                                            : 0;

  // Divides the layer's momentum as long as it lives.
  class Momentum {
   public:
    Momentum(Layer& layer, std::int64_t parts) : layer_(layer), was_(layer->options.momentum()) {
      if (was_) {
        layer_->options.momentum(*was_ / static_cast<double>(parts));
      }
    }
    ~Momentum() { layer_->options.momentum(was_); }
    Momentum(const Momentum&) = delete;
    Momentum& operator=(const Momentum&) = delete;

   private:
    Layer& layer_;
    std::optional<double> was_;
  };

  // One call can do: the layer is what its type says, and x can be seen as [N / n, n * C, ...].
  [[nodiscard]] bool is_ordinary(const at::Tensor& x) const {
    const auto& layer = *batchnorm;
    const bool shape = dims == 0 ? x.dim() == 2 || x.dim() == 3 : x.dim() == dims;
    return shape && x.is_contiguous() && x.size(1) == layer.options.num_features() &&
           x.numel() > 0 && !layer.slot() && typeid(layer) == typeid(typename Layer::Impl);
  }

  at::Tensor one_by_one(const at::Tensor& x, const std::vector<std::int64_t>& sizes) {
    const Momentum divided(batchnorm, static_cast<std::int64_t>(sizes.size()));
    std::vector<at::Tensor> out;
    for (const at::Tensor& part : x.split_with_sizes(sizes)) {
      out.push_back(batchnorm(part));
    }
    return at::cat(out);
  }

  // All parts in one call: the channels of each part are channels of their own.
  at::Tensor together(const at::Tensor& x, std::int64_t count) {
    const auto& options = batchnorm->options;
    const std::int64_t channels = x.size(1);
    const std::int64_t size = x.size(0) / count;
    const auto repeated = [count](const at::Tensor& t) {
      return t.defined() ? t.repeat({count}) : t;
    };
    const bool learns = options.track_running_stats() && batchnorm->running_mean.defined();
    at::Tensor mean;
    at::Tensor variance;  // of each part, unbiased
    if (learns) {
      mean = at::zeros({count * channels}, batchnorm->running_mean.options());
      variance = at::zeros({count * channels}, batchnorm->running_var.options());
    }
    const at::Tensor regrouped = x.view({count, size, channels, -1})  // [n, N / n, C, S]
                                     .transpose(0, 1)
                                     .reshape({size, count * channels, -1});
    at::Tensor y = at::batch_norm(regrouped, repeated(batchnorm->weight), repeated(batchnorm->bias),
                                  mean, variance, /*training=*/true, /*momentum=*/1.0,
                                  options.eps(), at::globalContext().userEnabledCuDNN());
    if (learns) {
      learn(mean.view({count, channels}), variance.view({count, channels}));
    }
    return y.view({size, count, channels, -1}).transpose(0, 1).reshape(x.sizes());
  }

  // Moves the running statistics as one call for each part, in their order, would.
  void learn(const at::Tensor& mean, const at::Tensor& variance) {
    const c10::AutoGradMode no_grad(false);
    const std::int64_t count = mean.size(0);
    const auto momentum = batchnorm->options.momentum();
    const at::Tensor seen = batchnorm->num_batches_tracked.add_(count);
    double keep = 0;
    at::Tensor weight;  // [n, 1] of each part
    if (momentum) {
      const double step = *momentum / static_cast<double>(count);
      const at::Tensor later = at::arange(count - 1, -1, -1, mean.options()).unsqueeze(1);
      weight = at::pow(at::Scalar(1 - step), later).mul_(step);
      keep = std::pow(1 - step, static_cast<double>(count));
    } else {
      const auto total = seen.item<double>();
      weight = at::zeros({count, 1}, mean.options()).fill_(1 / total);
      keep = (total - static_cast<double>(count)) / total;
    }
    batchnorm->running_mean.mul_(keep).add_(mean.mul(weight).sum(0));
    batchnorm->running_var.mul_(keep).add_(variance.mul(weight).sum(0));
  }

  std::int64_t ghost_;
};

using GhostBatchNorm1d = GhostBatchNormImpl<BatchNorm1d>;  ///< for [N, C] and [N, C, L]
using GhostBatchNorm2d = GhostBatchNormImpl<BatchNorm2d>;  ///< for [N, C, H, W]
using GhostBatchNorm3d = GhostBatchNormImpl<BatchNorm3d>;  ///< for [N, C, D, H, W]

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE GhostBatchNorm::~GhostBatchNorm() = default;

}  // namespace tutti::nn

#endif
