// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <tutti/metrics/detail/stat_scores.hpp>

namespace tutti {

/// The fraction found of what is of a class: tp / (tp + fn).
///
/// outputs: probabilities or logits, by Task; multiclass also classes [N, ...] and binary and
/// multilabel also 0 and 1, of an integer type. A batch of binary or multilabel outputs with any
/// number outside [0, 1] is one of logits. Targets other than 0 and 1, or outside 0..C-1, count for
/// no class. Average::none reports each class as "<name>_0", ..., and compute() is that of macro.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.Recall`.
class Recall final : public detail::StatScores {
 public:
  explicit Recall(ClassScoreOptions options = {}) : StatScores("Recall", std::move(options)) {}

  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Recall>(options());
  }

 private:
  [[nodiscard]] Share share(double tp, double /*fp*/, double fn) const override {
    return {tp, tp + fn};
  }
};

}  // namespace tutti
