// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/losses/soft_cross_entropy.hpp>

namespace tutti::detail {

// Weights [C] beside [N, C, d1, ...].
TUTTI_INLINE at::Tensor along_classes(const at::Tensor& weight, std::int64_t dims) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dims), 1);
  shape[1] = weight.numel();
  return weight.view(shape);
}

// The sum of all losses, divided by the weight that the targets carry altogether.
TUTTI_INLINE at::Tensor mean_by_targets(const at::Tensor& terms, const at::Tensor& target) {
  at::Tensor total = target.sum();
  if (!total.is_cpu()) {
    return terms.sum().div(total.neg_());
  }
  const double sum = total.item<double>();
  TUTTI_CHECK_VALUE(sum > 0, "the dense targets sum up to ", sum,
                    ", expected more than 0; there is nothing to average over");
  const std::int64_t positions = target.numel() / target.size(1);
  if (sum < static_cast<double>(positions) * (1 - 1e-4)) {
    TORCH_WARN_ONCE("some rows of the dense targets sum up to less than 1: ", sum, " over ",
                    positions, " positions; the mean is taken over what is there");
  }
  return terms.sum().mul(-1.0 / sum);
}

TUTTI_INLINE at::Tensor dense_cross_entropy(const at::Tensor& input, at::Tensor target,
                                            const at::Tensor& weight, std::int64_t ignore_index,
                                            Reduction reduction) {
  TUTTI_CHECK_VALUE(input.dim() >= 2, "soft_cross_entropy: the outputs are ", input.sizes(),
                    ", expected [N, C, ...]");
  if (ignore_index != -100) {
    TORCH_WARN_ONCE("soft_cross_entropy: ignore_index ", ignore_index,
                    " has no effect on dense targets; give ignored positions a row of zeros");
  }
  const bool half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  const at::Tensor log_prob = half ? input.log_softmax(1, at::kFloat) : input.log_softmax(1);
  target = target.to(log_prob.scalar_type());
  const at::Tensor weighted =
      weight.defined() ? target.mul(along_classes(weight, input.dim())) : target;
  const at::Tensor terms = log_prob.mul(weighted);  // [N, C, d1, ...]
  switch (reduction) {
    case Reduction::none:
      return terms.sum(1).neg();
    case Reduction::sum:
      return terms.sum().neg();
    case Reduction::mean:
      break;
  }
  return mean_by_targets(terms, target);
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor soft_cross_entropy(const at::Tensor& input, const at::Tensor& target,
                                           const at::Tensor& weight, std::int64_t ignore_index,
                                           Reduction reduction) {
  if (infer_target_type(input, target) == TargetType::dense) {
    return detail::dense_cross_entropy(input, target, weight, ignore_index, reduction);
  }
  TUTTI_CHECK_VALUE(is_index_targets(target), "soft_cross_entropy: the targets ", target.sizes(),
                    " are ", target.scalar_type(),
                    ", expected an integer type for indices of classes; for a weight for every "
                    "class give them the outputs' shape ",
                    input.sizes());
  try {
    return at::cross_entropy_loss(input, target.to(at::kLong), weight, detail::to_aten(reduction),
                                  ignore_index);
  } catch (const c10::IndexError& error) {
    TUTTI_CHECK_VALUE(false, "soft_cross_entropy: ", error.what_without_backtrace(),
                      " The outputs ", input.sizes(), " have ", input.size(input.dim() > 1 ? 1 : 0),
                      " classes, so targets are 0 to ", input.size(input.dim() > 1 ? 1 : 0) - 1,
                      ", or ", ignore_index, " where there is none");
    throw;  // not reached
  }
}

}  // namespace tutti::functional
