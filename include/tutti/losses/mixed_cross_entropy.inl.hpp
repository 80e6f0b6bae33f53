// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/losses/mixed_cross_entropy.hpp>

#include <torch/csrc/autograd/custom_function.h>

namespace tutti::detail {

TUTTI_INLINE MixedClasses mixed_classes(const at::Tensor& logits, const at::Tensor& target,
                                        const at::Tensor& rows,
                                        const std::vector<double>& weights) {
  const at::Tensor classes = target.to(logits.device(), at::kLong)
                                 .index_select(0, rows.flatten().to(logits.device()))
                                 .view(rows.sizes());
  at::Tensor row(at::detail::empty_cpu({1, std::ssize(weights)}, at::kFloat,
                                       /*pin_memory=*/false, std::nullopt));
  std::transform(weights.begin(), weights.end(), row.mutable_data_ptr<float>(),
                 [](double weight) { return static_cast<float>(weight); });
  const at::Tensor kept = classes.ge(0);
  return {classes.clamp_min(0), row.to(logits.device(), /*non_blocking=*/true).mul(kept)};
}

// Losses [N] of logits [N, C], and their gradient, without targets [N, C].
struct MixedCrossEntropy : torch::autograd::Function<MixedCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& classes, const at::Tensor& weights, double smoothing);

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor& log_prob = saved[1];
    const at::Tensor& classes = saved[2];
    const at::Tensor& weights = saved[3];
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const at::Tensor outer = gradients[0].unsqueeze(1);        // [N, 1]
    const at::Tensor share = weights.sum(1, true).mul(outer);  // [N, 1]
    const at::Tensor pairs = weights.mul(outer).mul(smoothing - 1).to(log_prob.scalar_type());
    const double uniform = smoothing / static_cast<double>(logits.size(1));
    at::Tensor gradient;               // [N, C]
    if (at::GradMode::is_enabled()) {  // a gradient of this one needs the way back to the logits
      gradient = logits.softmax(1, log_prob.scalar_type()).sub(uniform).mul(share);
      gradient = gradient.scatter_add(1, classes, pairs);
    } else {
      gradient = smoothing == 0 ? log_prob.exp() : log_prob.exp().sub_(uniform);
      gradient.mul_(share).scatter_add_(1, classes, pairs);
    }
    return {gradient.to(logits.scalar_type()), {}, {}, {}};
  }
};

TUTTI_INLINE at::Tensor MixedCrossEntropy::forward(torch::autograd::AutogradContext* context,
                                                   const at::Tensor& logits,
                                                   const at::Tensor& classes,
                                                   const at::Tensor& weights, double smoothing) {
  const bool half = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
  const at::Tensor log_prob = half ? logits.log_softmax(1, at::kFloat) : logits.log_softmax(1);
  context->save_for_backward({logits, log_prob, classes, weights});
  context->saved_data["smoothing"] = smoothing;
  at::Tensor terms = log_prob.gather(1, classes).mul(weights).sum(1).mul_(1 - smoothing);
  if (smoothing != 0) {
    terms.add_(log_prob.mean(1).mul_(weights.sum(1)), smoothing);
  }
  return terms.neg_();
}

TUTTI_INLINE void expect_mixed(const at::Tensor& logits, const at::Tensor& target,
                               const at::Tensor& rows, const std::vector<double>& weights,
                               double smoothing) {
  TUTTI_CHECK_VALUE(logits.dim() == 2 && logits.is_floating_point(),
                    "mixed_cross_entropy: the outputs are ", logits.scalar_type(), logits.sizes(),
                    ", expected floating [N, C]");
  TUTTI_CHECK_VALUE(target.dim() == 1 && target.size(0) == logits.size(0) &&
                        at::isIntegralType(target.scalar_type(), /*includeBool=*/false),
                    "mixed_cross_entropy: the targets are ", target.scalar_type(), target.sizes(),
                    ", expected an index of a class for each of ", logits.size(0), " outputs");
  TUTTI_CHECK_VALUE(rows.dim() == 2 && rows.size(0) == logits.size(0) &&
                        rows.size(1) == std::ssize(weights) && rows.scalar_type() == at::kLong,
                    "mixed_cross_entropy: rows is ", rows.scalar_type(), rows.sizes(), " beside ",
                    weights.size(), " weights, expected int64 [", logits.size(0), ", ",
                    weights.size(), "]");
  TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "mixed_cross_entropy: smoothing is ",
                    smoothing, ", expected a number from 0 to 1");
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor mixed_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                            const at::Tensor& rows,
                                            const std::vector<double>& weights, double smoothing,
                                            Reduction reduction) {
  ::tutti::detail::expect_mixed(logits, target, rows, weights, smoothing);
  TUTTI_CHECK_VALUE(
      !target.is_cpu() || target.numel() == 0 || target.max().item<std::int64_t>() < logits.size(1),
      "mixed_cross_entropy: a target is ", target.max().item<std::int64_t>(),
      ", expected less than ", logits.size(1), ", the number of classes");
  const auto mixed = ::tutti::detail::mixed_classes(logits, target, rows, weights);
  const at::Tensor losses =
      ::tutti::detail::MixedCrossEntropy::apply(logits, mixed.classes, mixed.weights, smoothing);
  if (reduction == Reduction::mean) {
    const at::Tensor total = mixed.weights.sum();
    TUTTI_CHECK_VALUE(!total.is_cpu() || logits.size(0) == 0 || total.item<double>() > 0,
                      "mixed_cross_entropy: all targets are negative, so there is nothing to "
                      "average over");
    return losses.sum().div(total);
  }
  return ::tutti::detail::reduce(losses, reduction);
}

}  // namespace tutti::functional
