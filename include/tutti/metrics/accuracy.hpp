// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>
#include <tutti/metrics/detail/task.hpp>
#include <tutti/metrics/detail/top_k.hpp>

namespace tutti {

/// Options of MulticlassAccuracy.
struct AccuracyOptions {
  std::int64_t num_classes = 0;  ///< 0: that of the outputs; needed unless average is micro
  Average average = Average::micro;
  std::int64_t top_k = 1;  ///< right when among the k classes of highest score, of equal ones those
                           ///< of lower number; >= 1
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  std::string name = "MulticlassAccuracy";     ///< under which it is logged
};

/// The fraction of examples whose class is the one of highest score.
///
/// outputs: scores [N, C, d1, ...], or classes [N, d1, ...] of an integer type. targets: indices
/// [N, d1, ...], or dense [N, C, d1, ...], of which the heaviest class counts.
/// Classes that occur neither in outputs nor in targets do not count in a macro average (with
/// top_k > 1: that do not occur in targets). The value of no example is 0. Average::none reports
/// the value of every class as "<name>_0", ..., and compute() is that of macro. Throws c10::Error
/// (ValueError) for options or shapes that do not fit. Source: torchmetrics,
/// `torchmetrics.classification.MulticlassAccuracy`.
class MulticlassAccuracy final : public detail::SumMetric {
 public:
  explicit MulticlassAccuracy(AccuracyOptions options = {});

  [[nodiscard]] const AccuracyOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MulticlassAccuracy>(options_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

 private:
  // The fraction that is right of each class's targets. counts: [3, C]
  static at::Tensor shares(const at::Tensor& counts) {
    return counts[0].div(counts[1].clamp_min(1));
  }

  [[nodiscard]] std::vector<at::Tensor> zeros() const override;

  void take_in(const at::Tensor& outputs, const at::Tensor& given) override;

  static at::Tensor class_of(const at::Tensor& targets, const at::Tensor& outputs) {
    return targets.is_floating_point() && targets.sizes() == outputs.sizes() ? targets.argmax(1)
                                                                             : targets;
  }

  void check_classes(const at::Tensor& outputs, bool scores) const;

  // The common case on the CPU, for which one loop is ten times faster than six operators.
  [[nodiscard]] bool is_plain(const at::Tensor& outputs, const at::Tensor& targets) const;

  template <class T>
  void add_plain(const at::Tensor& outputs, const at::Tensor& targets) {
    const T* row = outputs.const_data_ptr<T>();
    const auto* target = targets.const_data_ptr<std::int64_t>();
    const std::int64_t classes = outputs.size(1);
    std::int64_t right = 0;
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < outputs.size(0); ++i, row += classes) {
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < classes && !std::isnan(row[best]); ++c) {
        best = row[c] <= row[best] ? best : c;  // NaN is the largest, as in argmax
      }
      const bool counted = !options_.ignore_index || target[i] != *options_.ignore_index;
      total += counted ? 1 : 0;
      right += counted && best == target[i] ? 1 : 0;
    }
    at::Tensor counts(at::detail::empty_cpu({2}, at::kLong, /*pin_memory=*/false, std::nullopt));
    auto* out = counts.mutable_data_ptr<std::int64_t>();
    out[0] = right;
    out[1] = total;
    add({counts});
  }

  void add_micro(const at::Tensor& right, const at::Tensor& targets);

  void add_by_class(const at::Tensor& right, const at::Tensor& predicted,
                    const at::Tensor& targets);

  AccuracyOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
