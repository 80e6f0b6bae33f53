// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti {

/// What the numbers of a confusion matrix are fractions of.
enum class MatrixShare : std::uint8_t {
  none,         ///< of nothing: counts
  targets,      ///< of the examples of their target class ("true" in torchmetrics)
  predictions,  ///< of the examples that were said to be of their class ("pred")
  all,          ///< of all examples
};

/// Options of ConfusionMatrix.
struct ConfusionMatrixOptions {
  Task task = Task::multiclass;
  std::int64_t num_classes = 0;  ///< multiclass: needed
  std::int64_t num_labels = 0;   ///< multilabel: needed
  double threshold = 0.5;        ///< binary, multilabel: probabilities above it mean 1; in [0, 1]
  MatrixShare normalize = MatrixShare::none;
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  std::string name{};  ///< under which it is logged; empty: "MulticlassConfusionMatrix", by task
};

/// How often examples of each class (rows) were said to be of each class (columns); a table.
///
/// outputs: probabilities or logits, by Task, or classes of an integer type. A batch of binary or
/// multilabel outputs with any number outside [0, 1] is one of logits. Targets outside 0..C-1 count
/// nowhere. Logged as a table with a row for each target class ("target", "0", "1", ...), for
/// labels with the label in front. compute() is the fraction on the diagonal, 0 without examples.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.ConfusionMatrix`.
class ConfusionMatrix final : public detail::SumMetric {
 public:
  explicit ConfusionMatrix(ConfusionMatrixOptions options = {});

  [[nodiscard]] const ConfusionMatrixOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<ConfusionMatrix>(options_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

  /// The matrix of all batches: [C, C], binary [2, 2], multilabel [L, 2, 2]; int64 counts, or
  /// doubles where normalize says so, 0 where there is nothing to be a fraction of.
  [[nodiscard]] at::Tensor matrix() const { return matrix(states()); }
  [[nodiscard]] at::Tensor matrix(const std::vector<at::Tensor>& states) const;

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override;
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;
  // Classes that were said, [N, ...] as the targets.
  [[nodiscard]] at::Tensor said(const at::Tensor& outputs, const at::Tensor& targets,
                                const at::Tensor& counted) const;

  ConfusionMatrixOptions options_;
  std::int64_t classes_ = 2;  // rows and columns of a matrix
  std::int64_t labels_ = 1;   // matrices
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE ConfusionMatrix::ConfusionMatrix(ConfusionMatrixOptions options)
    : options_(std::move(options)) {
  if (options_.name.empty()) {
    options_.name = detail::task_name(options_.task, "ConfusionMatrix");
  }
  const std::int64_t columns =
      detail::task_columns(options_.name, options_.task, options_.num_classes, options_.num_labels);
  (options_.task == Task::multiclass ? classes_ : labels_) = columns;
  TUTTI_CHECK_VALUE(options_.threshold >= 0 && options_.threshold <= 1, options_.name,
                    ": threshold is ", options_.threshold, ", expected a number in [0, 1]");
}

TUTTI_INLINE std::vector<at::Tensor> ConfusionMatrix::zeros() const {
  return {at::zeros({labels_, classes_, classes_}, at::kLong)};
}

TUTTI_INLINE at::Tensor ConfusionMatrix::said(const at::Tensor& outputs, const at::Tensor& targets,
                                              const at::Tensor& counted) const {
  if (options_.task != Task::multiclass || outputs.dim() == targets.dim() + 1) {
    detail::check_task_shapes(options_.name, options_.task,
                              options_.task == Task::multiclass ? classes_ : labels_, outputs,
                              targets);
  } else {
    TUTTI_CHECK_VALUE(outputs.sizes() == targets.sizes() && !outputs.is_floating_point(),
                      options_.name, ": outputs ", outputs.scalar_type(), " ", outputs.sizes(),
                      " and targets ", targets.sizes(),
                      ", expected scores [N, C, ...] and classes [N, ...], or classes for both");
  }
  if (!outputs.is_floating_point()) {
    return outputs.to(at::kLong);
  }
  if (options_.task == Task::multiclass) {
    return outputs.argmax(1);
  }
  const at::Tensor among = options_.task == Task::binary ? counted : at::Tensor{};
  return detail::sigmoid_of_logits(outputs, among).gt(options_.threshold).to(at::kLong);
}

TUTTI_INLINE void ConfusionMatrix::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  at::Tensor counted = detail::counted_places(targets, options_.ignore_index);
  at::Tensor classes = said(outputs, targets, counted);
  const at::Tensor wanted = targets.to(at::kLong);
  for (const at::Tensor& x : {classes, wanted}) {
    counted = counted.logical_and(x.ge(0)).logical_and(x.lt(classes_));
  }
  at::Tensor cell = wanted.mul(classes_).add(classes);
  if (options_.task == Task::multilabel) {
    cell = detail::columns_last(cell);
    counted = detail::columns_last(counted);
    const at::Tensor number = cell.new_ones({labels_}).cumsum(0).sub(1);
    cell = cell.add(number.mul(classes_ * classes_));
  }
  add({detail::class_counts(cell, counted, labels_ * classes_ * classes_)
           .view({labels_, classes_, classes_})});
}

TUTTI_INLINE at::Tensor ConfusionMatrix::matrix(const std::vector<at::Tensor>& states) const {
  at::Tensor out = states[0].cpu();
  if (options_.normalize != MatrixShare::none) {
    out = out.to(at::kDouble);
    const std::vector<std::int64_t> over =
        options_.normalize == MatrixShare::targets       ? std::vector<std::int64_t>{2}
        : options_.normalize == MatrixShare::predictions ? std::vector<std::int64_t>{1}
                                                         : std::vector<std::int64_t>{1, 2};
    out = out.div(out.sum(over, /*keepdim=*/true).clamp_min(1));
  }
  return options_.task == Task::multilabel ? out : out[0];
}

TUTTI_INLINE double ConfusionMatrix::compute(const std::vector<at::Tensor>& states) const {
  const at::Tensor counts = states[0].cpu();
  const auto total = static_cast<double>(counts.sum().item<std::int64_t>());
  const at::Tensor right = counts.diagonal(0, 1, 2).sum();
  return total == 0 ? 0 : static_cast<double>(right.item<std::int64_t>()) / total;
}

TUTTI_INLINE void ConfusionMatrix::report(const std::vector<at::Tensor>& states,
                                          MetricReport& to) const {
  const at::Tensor cells = matrix(states).to(at::kDouble).contiguous();
  const auto* cell = cells.const_data_ptr<double>();
  const auto text = [&](double x) {
    return options_.normalize == MatrixShare::none ? std::to_string(static_cast<std::int64_t>(x))
                                                   : std::to_string(x);
  };
  const bool labels = options_.task == Task::multilabel;
  std::vector<std::string> columns;
  if (labels) {
    columns.emplace_back("label");
  }
  columns.emplace_back("target");
  for (std::int64_t c = 0; c < classes_; ++c) {
    columns.push_back(std::to_string(c));
  }
  std::vector<std::vector<std::string>> rows;
  for (std::int64_t i = 0; i < labels_ * classes_; ++i) {
    auto& row = rows.emplace_back();
    if (labels) {
      row.push_back(std::to_string(i / classes_));
    }
    row.push_back(std::to_string(i % classes_));
    for (std::int64_t c = 0; c < classes_; ++c) {
      row.push_back(text(cell[i * classes_ + c]));
    }
  }
  to.table(columns, rows);
}

}  // namespace tutti

#endif
