// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <tutti/metrics/detail/stat_scores.hpp>

namespace tutti {

/// The harmonic mean of precision and recall: 2 tp / (2 tp + fp + fn).
///
/// outputs: probabilities or logits, by Task; multiclass also classes [N, ...] and binary and
/// multilabel also 0 and 1, of an integer type. A batch of binary or multilabel outputs with any
/// number outside [0, 1] is one of logits. Targets other than 0 and 1, or outside 0..C-1, count for
/// no class. Average::none reports each class as "<name>_0", ..., and compute() is that of macro.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.F1Score`. BinaryF1Score is Composer's: of scores [N, 2,
/// ...], and NaN where this is 0.
class F1Score final : public detail::StatScores {
 public:
  explicit F1Score(ClassScoreOptions options = {}) : StatScores("F1Score", std::move(options)) {}

  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<F1Score>(options());
  }

 private:
  [[nodiscard]] Share share(double tp, double fp, double fn) const override {
    return {2 * tp, 2 * tp + fp + fn};
  }
  [[nodiscard]] bool top_k_leaves_out_said() const override { return false; }
};

}  // namespace tutti
