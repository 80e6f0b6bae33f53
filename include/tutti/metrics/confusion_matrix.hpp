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
#include <tutti/metrics/confusion_matrix.inl.hpp>
#endif
