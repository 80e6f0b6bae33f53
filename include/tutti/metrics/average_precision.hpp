// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/metrics/detail/curve_metric.hpp>

namespace tutti {

/// Options of AveragePrecision.
struct AveragePrecisionOptions {
  Task task = Task::binary;
  std::int64_t num_classes = 0;                ///< multiclass: needed
  std::int64_t num_labels = 0;                 ///< multilabel: needed
  Average average = Average::macro;            ///< over classes (not micro) or labels
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  std::string name{};  ///< under which it is logged; empty: "BinaryAveragePrecision" and so on
};

/// The mean of the precisions at all scores that occur, each weighted by the recall that it adds.
///
/// outputs: probabilities or logits, by Task; a batch with any number outside [0, 1] is one of
/// logits. A class is measured against all others. A class that no target has is left out of the
/// average (NaN with Average::none), unless all targets are 0: it then is 0, as a label is that no
/// target has. Keeps all scores and targets. NaN without examples, where torchmetrics raises.
/// Average::none reports each class as "<name>_0", ..., and compute() is that of macro.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.AveragePrecision` with `thresholds=None`.
class AveragePrecision final : public detail::CurveMetric {
 public:
  explicit AveragePrecision(AveragePrecisionOptions options = {})
      : CurveMetric("AveragePrecision",
                    {options.task, options.num_classes, options.num_labels, options.average,
                     options.ignore_index},
                    options.name),
        options_(std::move(options)) {}

  [[nodiscard]] const AveragePrecisionOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<AveragePrecision>(options_);
  }

 private:
  [[nodiscard]] double area(const detail::Curve& curve) const override {
    const auto precision = [&](std::size_t i) {
      return curve.tps[i] / (curve.tps[i] + curve.fps[i]);
    };
    if (curve.all_targets_zero) {  // the reference takes the recall as 1 from the first score on
      return precision(0);
    }
    const double positives = curve.tps.back();
    if (positives == 0) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    double sum = 0;
    double before = 0;
    for (std::size_t i = 0; i < curve.size(); ++i) {
      sum += (curve.tps[i] - before) / positives * precision(i);
      before = curve.tps[i];
    }
    return sum;
  }

  AveragePrecisionOptions options_;
};

}  // namespace tutti
