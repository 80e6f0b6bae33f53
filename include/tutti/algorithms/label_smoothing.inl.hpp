// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/label_smoothing.hpp>

namespace tutti::detail {

TUTTI_INLINE bool some_negative(const at::Tensor& indices) {
  if (indices.scalar_type() != at::kLong || !indices.is_contiguous()) {
    return indices.lt(0).any().item<bool>();
  }
  const auto* data = indices.const_data_ptr<std::int64_t>();
  const std::int64_t n = indices.numel();
  bool found = false;
  for (std::int64_t i = 0; i < n; ++i) {
    found = found || data[i] < 0;
  }
  return found;
}

TUTTI_INLINE at::Tensor scale_and_shift(at::Tensor x, double keep, double uniform) {
  constexpr std::int64_t small = 1 << 12;  // where calling two operators costs more than they do
  if (!x.is_cpu() || x.numel() > small) {
    return x.mul_(keep).add_(uniform);
  }
  auto* data = x.mutable_data_ptr<float>();
  const std::int64_t n = x.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    data[i] = static_cast<float>(keep) * data[i] + static_cast<float>(uniform);
  }
  return x;
}

TUTTI_INLINE at::Tensor smooth_indices(const at::Tensor& logits, const at::Tensor& target,
                                       double smoothing, double uniform) {
  at::Tensor dense = functional::ensure_targets_one_hot(logits, target);
  if (target.is_cpu() && !some_negative(target)) {
    return scale_and_shift(std::move(dense), 1 - smoothing, uniform);
  }
  return dense.mul_(1 - smoothing)
      .add_(target.ge(0).mul(uniform).unsqueeze(1));  // [N, 1, ...], 0 where ignored
}

TUTTI_INLINE at::Tensor smooth_dense(const at::Tensor& target, double smoothing, double uniform) {
  const at::Tensor dense = target.to(at::kFloat);
  const at::Tensor share = dense.sum(1, /*keepdim=*/true).clamp_(0, 1).mul_(uniform);
  return dense.mul(1 - smoothing).add_(share);
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor smooth_labels(const at::Tensor& logits, const at::Tensor& target,
                                      double smoothing) {
  TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "smooth_labels: smoothing is ", smoothing,
                    ", expected a number from 0 to 1");
  TUTTI_CHECK_VALUE(logits.dim() >= 2, "smooth_labels: the outputs are ", logits.sizes(),
                    ", expected [N, K, ...]");
  const double uniform = smoothing / static_cast<double>(logits.size(1));
  return infer_target_type(logits, target) == TargetType::indices
             ? ::tutti::detail::smooth_indices(logits, target, smoothing, uniform)
             : ::tutti::detail::smooth_dense(target, smoothing, uniform);
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void LabelSmoothing::apply(BeforeLoss, State& state) const {
  const at::Tensor& target = detail::targets_of(state.batch, target_key);
  detail::replace_targets(state.batch, target_key,
                          functional::smooth_labels(state.outputs.tensor(), target, smoothing));
}

}  // namespace tutti
