// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>
#include <tutti/metrics/detail/task.hpp>
#include <tutti/metrics/detail/top_k.hpp>

namespace tutti {

/// Options of PrecisionScore, Recall and F1Score.
struct ClassScoreOptions {
  Task task = Task::multiclass;
  std::int64_t num_classes = 0;  ///< multiclass: needed unless average is micro; 0: the outputs'
  std::int64_t num_labels = 0;   ///< multilabel: needed
  double threshold = 0.5;        ///< binary, multilabel: probabilities above it mean 1; in [0, 1]
  Average average = Average::micro;  ///< multiclass, multilabel
  std::int64_t top_k = 1;  ///< multiclass: right when among the k classes of highest score
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  double zero_division = 0;                    ///< the value of 0/0: 0 or 1
  std::string
      name{};  ///< under which it is logged; empty: "MulticlassPrecision", by task and metric
};

namespace detail {

/// A metric of how many of each class were rightly said (tp), said wrongly (fp) and missed (fn).
class StatScores : public SumMetric {
 public:
  [[nodiscard]] const ClassScoreOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

 protected:
  StatScores(std::string_view metric, ClassScoreOptions options);

  /// Numerator and denominator of a class's value.
  struct Share {
    double part;
    double of;
  };
  [[nodiscard]] virtual Share share(double tp, double fp, double fn) const = 0;

  /// With top_k > 1, classes that no target has are left out of a macro average, said or not.
  [[nodiscard]] virtual bool top_k_leaves_out_said() const { return true; }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({3, columns_}, at::kLong)};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;
  void add_multiclass(const at::Tensor& outputs, const at::Tensor& targets);

  [[nodiscard]] double value(double tp, double fp, double fn) const {
    const Share s = share(tp, fp, fn);
    return s.of == 0 ? options_.zero_division : s.part / s.of;
  }

  ClassScoreOptions options_;
  std::int64_t columns_ = 1;  // of the counts [3, columns]: tp, fp, fn
};

}  // namespace detail

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE StatScores::StatScores(std::string_view metric, ClassScoreOptions options)
    : options_(std::move(options)) {
  if (options_.name.empty()) {
    options_.name = task_name(options_.task, metric);
  }
  const bool one = options_.task == Task::multiclass && options_.average == Average::micro;
  columns_ =
      one ? 1
          : task_columns(options_.name, options_.task, options_.num_classes, options_.num_labels);
  TUTTI_CHECK_VALUE(options_.threshold >= 0 && options_.threshold <= 1, options_.name,
                    ": threshold is ", options_.threshold, ", expected a number in [0, 1]");
  TUTTI_CHECK_VALUE(options_.top_k >= 1, options_.name, ": top_k is ", options_.top_k,
                    ", expected 1 or more");
  TUTTI_CHECK_VALUE(options_.zero_division == 0 || options_.zero_division == 1, options_.name,
                    ": zero_division is ", options_.zero_division, ", expected 0 or 1");
}

TUTTI_INLINE double StatScores::compute(const std::vector<at::Tensor>& states) const {
  const at::Tensor counts = states[0].cpu().to(at::kDouble).contiguous();
  const auto* tp = counts.const_data_ptr<double>();
  const auto* fp = tp + columns_;
  const auto* fn = fp + columns_;
  if (options_.task == Task::binary || options_.average == Average::micro) {
    double sums[3] = {0, 0, 0};
    for (std::int64_t i = 0; i < columns_; ++i) {
      sums[0] += tp[i];
      sums[1] += fp[i];
      sums[2] += fn[i];
    }
    return value(sums[0], sums[1], sums[2]);
  }
  const bool with_said = options_.top_k == 1 || !top_k_leaves_out_said();
  double sum = 0;
  double total = 0;
  for (std::int64_t i = 0; i < columns_; ++i) {
    const double there = tp[i] + fn[i];
    const bool occurs = options_.task == Task::multilabel || there + (with_said ? fp[i] : 0) > 0;
    const double weight = options_.average == Average::weighted ? there : (occurs ? 1 : 0);
    sum += weight * value(tp[i], fp[i], fn[i]);
    total += weight;
  }
  return total == 0 ? 0 : sum / total;
}

TUTTI_INLINE void StatScores::report(const std::vector<at::Tensor>& states,
                                     MetricReport& to) const {
  if (options_.task == Task::binary || options_.average != Average::none) {
    return to.value(compute(states));
  }
  const at::Tensor counts = states[0].cpu().to(at::kDouble).contiguous();
  const auto* tp = counts.const_data_ptr<double>();
  std::vector<double> values;
  for (std::int64_t i = 0; i < columns_; ++i) {
    values.push_back(value(tp[i], tp[columns_ + i], tp[2 * columns_ + i]));
  }
  report_each(values, options_.name, to);
}

TUTTI_INLINE void StatScores::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  if (options_.task == Task::multiclass) {
    return add_multiclass(outputs, targets);
  }
  check_task_shapes(options_.name, options_.task, options_.num_labels, outputs, targets);
  const at::Tensor counted = counted_places(targets, options_.ignore_index);
  const at::Tensor said = outputs.is_floating_point()
                              ? sigmoid_of_logits(outputs).gt(options_.threshold)
                              : outputs.eq(1);
  const at::Tensor there = targets.eq(1).logical_and(counted);
  const at::Tensor not_there = targets.eq(0).logical_and(counted);
  at::Tensor counts = said.new_empty({3, columns_}, at::kLong);
  const auto put = [&](std::int64_t row, const at::Tensor& places) {
    counts.select(0, row).copy_(options_.task == Task::binary
                                    ? places.sum().reshape({1})
                                    : places.transpose(0, 1).reshape({columns_, -1}).sum(1));
  };
  put(0, said.logical_and(there));
  put(1, said.logical_and(not_there));
  put(2, said.logical_not().logical_and(there));
  add({counts});
}

TUTTI_INLINE void StatScores::add_multiclass(const at::Tensor& outputs, const at::Tensor& targets) {
  const bool scores = outputs.dim() == targets.dim() + 1;
  if (scores) {
    check_task_shapes(options_.name, options_.task, options_.num_classes, outputs, targets);
  }
  TUTTI_CHECK_VALUE(scores || (outputs.sizes() == targets.sizes() && options_.top_k == 1 &&
                               !outputs.is_floating_point()),
                    options_.name, ": outputs ", outputs.scalar_type(), " ", outputs.sizes(),
                    " and targets ", targets.sizes(), " with top_k ", options_.top_k,
                    ", expected scores [N, C, ...] and classes [N, ...], or classes for both");
  const at::Tensor wanted = targets.to(at::kLong);
  at::Tensor said = scores ? outputs.argmax(1) : outputs.to(at::kLong);
  if (options_.top_k > 1) {
    said = wanted.where(among_best(outputs, wanted, options_.top_k), said);
  }
  const at::Tensor counted = counted_places(targets, options_.ignore_index);
  const at::Tensor right = said.eq(wanted).logical_and(counted);
  at::Tensor counts = said.new_empty({3, columns_}, at::kLong);
  at::Tensor tp = counts.select(0, 0);
  if (options_.average == Average::micro) {
    tp.copy_(right.sum().reshape({1}));
    counts.narrow(0, 1, 2).copy_(counted.sum().sub(tp).expand({2, 1}));
  } else {
    tp.copy_(class_counts(wanted, right, columns_));
    counts.select(0, 1).copy_(class_counts(said, counted, columns_).sub(tp));
    counts.select(0, 2).copy_(class_counts(wanted, counted, columns_).sub(tp));
  }
  add({counts});
}

}  // namespace tutti::detail

#endif
