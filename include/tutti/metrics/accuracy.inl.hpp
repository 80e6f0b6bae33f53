// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/accuracy.hpp>

namespace tutti {

TUTTI_INLINE MulticlassAccuracy::MulticlassAccuracy(AccuracyOptions options)
    : options_(std::move(options)) {
  TUTTI_CHECK_VALUE(options_.top_k >= 1, "MulticlassAccuracy: top_k is ", options_.top_k,
                    ", expected 1 or more");
  TUTTI_CHECK_VALUE(options_.num_classes > 0 || options_.average == Average::micro,
                    "MulticlassAccuracy: num_classes is ", options_.num_classes,
                    ", expected the number of classes for an average over classes");
}

TUTTI_INLINE double MulticlassAccuracy::compute(const std::vector<at::Tensor>& states) const {
  if (options_.average == Average::micro) {
    const at::Tensor counts = states[0].cpu();
    const auto* count = counts.const_data_ptr<std::int64_t>();
    return count[1] == 0 ? 0 : static_cast<double>(count[0]) / static_cast<double>(count[1]);
  }
  const at::Tensor counts = states[0].cpu().to(at::kDouble);  // [3, C]: right, targets, outputs
  const at::Tensor there = counts[1];
  const at::Tensor weight = options_.average == Average::weighted
                                ? there
                                : (options_.top_k > 1 ? there : there.add(counts[2])).gt(0);
  const double total = weight.sum().item<double>();
  return total == 0 ? 0 : shares(counts).mul(weight).sum().item<double>() / total;
}

TUTTI_INLINE void MulticlassAccuracy::report(const std::vector<at::Tensor>& states,
                                             MetricReport& to) const {
  if (options_.average != Average::none) {
    return to.value(compute(states));
  }
  const at::Tensor each = shares(states[0].cpu().to(at::kDouble)).contiguous();
  const auto* first = each.const_data_ptr<double>();
  detail::report_each({first, first + each.numel()}, options_.name, to);
}

TUTTI_INLINE std::vector<at::Tensor> MulticlassAccuracy::zeros() const {
  const bool micro = options_.average == Average::micro;
  return {at::zeros(
      micro ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{3, options_.num_classes},
      at::kLong)};
}

TUTTI_INLINE void MulticlassAccuracy::take_in(const at::Tensor& outputs, const at::Tensor& given) {
  if (is_plain(outputs, given)) {
    check_classes(outputs, /*scores=*/true);
    return outputs.scalar_type() == at::kFloat ? add_plain<float>(outputs, given)
                                               : add_plain<double>(outputs, given);
  }
  const at::Tensor targets = class_of(given, outputs);
  const bool scores = outputs.dim() == targets.dim() + 1;
  check_classes(outputs, scores);
  const at::Tensor predicted = scores ? outputs.argmax(1) : outputs;  // [N, d1, ...]
  TUTTI_CHECK_VALUE(predicted.sizes() == targets.sizes(), "MulticlassAccuracy: outputs ",
                    outputs.sizes(), " and targets ", given.sizes(),
                    ", expected scores [N, C, ...] and classes [N, ...]");
  const at::Tensor right = options_.top_k == 1
                               ? predicted.eq(targets)
                               : detail::among_best(outputs, targets, options_.top_k);
  if (options_.average == Average::micro) {
    add_micro(right, targets);
  } else {
    add_by_class(right, predicted, targets);
  }
}

TUTTI_INLINE void MulticlassAccuracy::check_classes(const at::Tensor& outputs, bool scores) const {
  TUTTI_CHECK_VALUE(!scores || options_.num_classes == 0 || outputs.size(1) == options_.num_classes,
                    "MulticlassAccuracy: the outputs ", outputs.sizes(), " have ", outputs.size(1),
                    " classes, expected ", options_.num_classes);
  TUTTI_CHECK_VALUE(options_.top_k == 1 || (scores && outputs.size(1) >= options_.top_k),
                    "MulticlassAccuracy: top_k is ", options_.top_k, " and the outputs are ",
                    outputs.sizes(), ", expected scores of at least as many classes");
}

TUTTI_INLINE bool MulticlassAccuracy::is_plain(const at::Tensor& outputs,
                                               const at::Tensor& targets) const {
  return options_.average == Average::micro && options_.top_k == 1 && outputs.dim() == 2 &&
         targets.dim() == 1 && outputs.size(0) == targets.size(0) && outputs.size(1) > 0 &&
         outputs.is_cpu() && targets.is_cpu() && targets.scalar_type() == at::kLong &&
         (outputs.scalar_type() == at::kFloat || outputs.scalar_type() == at::kDouble) &&
         outputs.is_contiguous() && targets.is_contiguous();
}

TUTTI_INLINE void MulticlassAccuracy::add_micro(const at::Tensor& right,
                                                const at::Tensor& targets) {
  at::Tensor counts = right.new_empty({2}, at::kLong);
  at::Tensor correct = counts.select(0, 0);
  if (options_.ignore_index) {
    const at::Tensor counted = targets.ne(*options_.ignore_index);
    correct.copy_(right.logical_and(counted).sum());
    counts.select(0, 1).copy_(counted.sum());
  } else {
    correct.copy_(right.sum());
    counts.select(0, 1).fill_(targets.numel());
  }
  add({counts});
}

TUTTI_INLINE void MulticlassAccuracy::add_by_class(const at::Tensor& right,
                                                   const at::Tensor& predicted,
                                                   const at::Tensor& targets) {
  const at::Tensor counted =
      options_.ignore_index ? targets.ne(*options_.ignore_index) : right.new_ones(right.sizes());
  const std::int64_t classes = options_.num_classes;
  const at::Tensor index = targets.to(at::kLong);
  at::Tensor counts = right.new_empty({3, classes}, at::kLong);
  counts.select(0, 0).copy_(detail::class_counts(index, counted.logical_and(right), classes));
  counts.select(0, 1).copy_(detail::class_counts(index, counted, classes));
  counts.select(0, 2).copy_(detail::class_counts(predicted.to(at::kLong), counted, classes));
  add({counts});
}

}  // namespace tutti
