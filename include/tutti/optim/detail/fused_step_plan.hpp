// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/cuda_kernel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/cuda_step.hpp>
#include <tutti/optim/detail/parameter_groups.hpp>
#include <tutti/optim/detail/step_loops.hpp>
#include <tutti/optim/fused_step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_clamp_max_ops.h>
#include <ATen/ops/_foreach_clamp_min_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <torch/optim/optimizer.h>

/// How a FusedStep becomes views of memory.
namespace tutti::optim::detail {

StepExtras extras_of(const FusedStep& fused);

/// There are loops, or a kernel, for the bucket's parameters, which find the fused step's scale.
bool has_loops(const Bucket& bucket, const FusedStep& fused);

/// One pass over the bucket's views, where they are.
template <class Numbers>
void step_views(const Bucket& bucket, const Numbers& numbers, const StepExtras& extras) {
  if constexpr (HasKernel<Numbers>) {
    if (!bucket.plain) {
      step_on(bucket.device, bucket.views, numbers, extras);
      return;
    }
  }
  step_views(bucket.views, numbers, extras);
}

/// Leaves the bucket the ways of updating it that its rule has.
template <class Hyper>
void keep_ways(const Hyper& h, Bucket& bucket) {
  bool loops = false;
  bool kernel = false;
  if constexpr (HasLoops<Hyper>) {
    loops = true;
    kernel = HasKernel<decltype(Rule<Hyper>::numbers(h, 0.0, bucket))>;
    if constexpr (requires { Rule<Hyper>::has_loops(bucket); }) {
      loops = Rule<Hyper>::has_loops(bucket);
    }
  }
  bucket.plain = bucket.plain && loops;
  bucket.on_cuda = bucket.on_cuda && loops && kernel;
}

/// The gradient, strided like the parameter, since loops walk through memory, not indices.
/// name: the optimizer's. copied: becomes true where it was laid out anew.
at::Tensor laid_out(std::string_view name, const at::Tensor& gradient, const at::Tensor& like,
                    bool& copied);

/// What a FusedStep does to gradients, ahead of the step.
void clip_separately(std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const FusedStep& fused);

/// No two parameters of the groups, which are dense, share memory.
bool overlap_free(const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// The bucket of a parameter whose state says this; a new one where there is none yet.
/// mask: its buffers.
std::size_t bucket_for(const ParameterState& state, unsigned mask, bool first,
                       std::vector<Bucket>& buckets);

/// Which average follows which parameter.
class Followers {
 public:
  explicit Followers(const Averaging& averaging) : averaging_(averaging) {
    for (std::size_t i = 0; i < averaging.weights->size(); ++i) {
      index_.emplace((*averaging.weights)[i].unsafeGetTensorImpl(), i);
    }
  }

  /// Notes the averages that lie in memory as the bucket's parameters do.
  void find(Bucket& bucket) const;

 private:
  const Averaging& averaging_;
  std::unordered_map<const void*, std::size_t> index_;
};

/// Where the bucket's tensors are in memory now, with the averages that Followers found.
void gather_views(Bucket& bucket, const Averaging* averaging);

}  // namespace tutti::optim::detail

#if TUTTI_BODIES

namespace tutti::optim::detail {

TUTTI_INLINE StepExtras extras_of(const FusedStep& fused) {
  return {
      .scale = static_cast<float>(fused.scale),
      .limit = static_cast<float>(fused.limit),
      .keep = fused.clips() && fused.keep_gradients,
      .follow = static_cast<float>(-(1.0 - fused.averaging.smoothing)),
      .device_scale = fused.device_scale.defined() && fused.device_scale.scalar_type() == at::kFloat
                          ? fused.device_scale.const_data_ptr<float>()
                          : nullptr};
}

TUTTI_INLINE bool has_loops(const Bucket& bucket, const FusedStep& fused) {
  const at::Tensor& scale = fused.device_scale;
  return scale.defined() ? bucket.on_cuda && scale.device() == bucket.device &&
                               scale.scalar_type() == at::kFloat
                         : bucket.plain || bucket.on_cuda;
}

TUTTI_INLINE at::Tensor laid_out(std::string_view name, const at::Tensor& gradient,
                                 const at::Tensor& like, bool& copied) {
  TUTTI_CHECK(gradient.layout() == at::kStrided, name,
              ": sparse gradients are not supported; use dense ones, e.g. an Embedding with "
              "sparse = false.");
  if (gradient.strides() == like.strides() && gradient.scalar_type() == like.scalar_type()) {
    return gradient;
  }
  copied = true;
  at::Tensor copy = detail::like(like);
  copy.copy_(gradient);
  return copy;
}

TUTTI_INLINE void clip_separately(std::vector<torch::optim::OptimizerParamGroup>& groups,
                                  const FusedStep& fused) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (const at::Tensor& gradient = parameter.grad(); gradient.defined()) {
        gradients.push_back(gradient);
      }
    }
  }
  if (gradients.empty()) {
    return;
  }
  if (fused.device_scale.defined()) {
    at::_ops::_foreach_mul__Tensor::call(gradients, fused.device_scale);
  } else if (fused.scale != 1.0) {
    at::_ops::_foreach_mul__Scalar::call(gradients, fused.scale);
  }
  if (fused.limits()) {
    at::_ops::_foreach_clamp_min__Scalar::call(gradients, -fused.limit);
    at::_ops::_foreach_clamp_max__Scalar::call(gradients, fused.limit);
  }
}

TUTTI_INLINE bool overlap_free(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<std::pair<const char*, const char*>> ranges;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const auto* data = static_cast<const char*>(parameter.const_data_ptr());
      if (parameter.nbytes() > 0) {
        ranges.emplace_back(data, data + parameter.nbytes());
      }
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return false;
    }
  }
  return true;
}

TUTTI_INLINE std::size_t bucket_for(const ParameterState& state, unsigned mask, bool first,
                                    std::vector<Bucket>& buckets) {
  const at::Tensor& parameter = state.parameter;
  std::size_t b = 0;
  for (; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    if (bucket.device == parameter.device() && bucket.type == parameter.scalar_type() &&
        bucket.step == state.step && bucket.first == first && bucket.mask == mask &&
        bucket.scalars == state.scalars) {
      return b;
    }
  }
  Bucket& bucket = buckets.emplace_back();
  bucket.device = parameter.device();
  bucket.type = parameter.scalar_type();
  bucket.step = state.step;
  bucket.first = first;
  bucket.mask = mask;
  bucket.scalars = state.scalars;
  bucket.plain = bucket.device.is_cpu() && bucket.type == at::kFloat && ::tutti::detail::has_avx2();
  bucket.on_cuda =
      bucket.device.is_cuda() && bucket.type == at::kFloat && ::tutti::detail::has_cuda_kernels;
  return b;
}

TUTTI_INLINE void Followers::find(Bucket& bucket) const {
  bucket.average.assign(bucket.parameters.size(), -1);
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const at::Tensor& parameter = bucket.parameters[i];
    const auto found = index_.find(parameter.unsafeGetTensorImpl());
    if (found != index_.end()) {
      const at::Tensor& average = (*averaging_.averages)[found->second];
      if (average.device() == bucket.device && average.scalar_type() == at::kFloat &&
          average.sizes() == parameter.sizes() && average.strides() == parameter.strides()) {
        bucket.average[i] = static_cast<std::ptrdiff_t>(found->second);
      }
    }
  }
}

TUTTI_INLINE void gather_views(Bucket& bucket, const Averaging* averaging) {
  bucket.views.clear();
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    ParameterView view{.parameter = bucket.parameters[i].mutable_data_ptr<float>(),
                       .gradient = bucket.gradients[i].mutable_data_ptr<float>(),
                       .buffers = {},
                       .average = nullptr,
                       .size = bucket.parameters[i].numel()};
    each_buffer(bucket.mask, [&](std::size_t b) {
      view.buffers[b] = bucket.buffers[b][i].mutable_data_ptr<float>();
    });
    if (averaging != nullptr && bucket.average[i] >= 0) {
      const auto at = static_cast<std::size_t>(bucket.average[i]);
      view.average = (*averaging->averages)[at].mutable_data_ptr<float>();
      (*averaging->done)[at] = 1;
    }
    bucket.views.push_back(view);
  }
}

}  // namespace tutti::optim::detail

#endif
