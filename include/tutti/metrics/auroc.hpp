// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/curve_metric.hpp>

namespace tutti {

/// Options of AUROC.
struct AUROCOptions {
  Task task = Task::binary;
  std::int64_t num_classes = 0;      ///< multiclass: needed
  std::int64_t num_labels = 0;       ///< multilabel: needed
  Average average = Average::macro;  ///< over classes (not micro) or labels
  std::optional<double> max_fpr{};   ///< binary: the area up to this rate, in (0, 1], standardised
                                     ///< so that 0.5 is chance and 1 the best (McClish)
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  std::string name{};  ///< under which it is logged; empty: "BinaryAUROC" and so on, by task
};

/// The area under the curve of the true positive rate over the false positive rate, exact, at all
/// scores that occur.
///
/// outputs: probabilities or logits, by Task; a batch with any number outside [0, 1] is one of
/// logits. A class is measured against all others. One that no target has, or all have, is 0.
/// Keeps all scores and targets. NaN without examples, where torchmetrics raises.
/// Average::none reports each class as "<name>_0", ..., and compute() is that of macro.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.AUROC` with `thresholds=None`.
class AUROC final : public detail::CurveMetric {
 public:
  explicit AUROC(AUROCOptions options = {})
      : CurveMetric("AUROC",
                    {options.task, options.num_classes, options.num_labels, options.average,
                     options.ignore_index},
                    options.name),
        options_(std::move(options)) {
    TUTTI_CHECK_VALUE(!options_.max_fpr || (options_.task == Task::binary &&
                                            *options_.max_fpr > 0 && *options_.max_fpr <= 1),
                      options_.name, ": max_fpr is ", options_.max_fpr.value_or(0),
                      ", expected a number in (0, 1], of a binary task alone");
  }

  [[nodiscard]] const AUROCOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<AUROC>(options_);
  }

 private:
  [[nodiscard]] double area(const detail::Curve& curve) const override;

  AUROCOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE double AUROC::area(const detail::Curve& curve) const {
  const double negatives = curve.fps.back();
  const double positives = curve.tps.back();
  if (negatives == 0 || positives == 0) {
    return 0;
  }
  const double end = options_.max_fpr.value_or(1);
  double sum = 0;
  double x = 0;
  double y = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const double next_x = curve.fps[i] / negatives;
    const double next_y = curve.tps[i] / positives;
    if (static_cast<float>(next_x) > static_cast<float>(end)) {  // the reference's rates
      const double y_at_end = y + (next_y - y) * (end - x) / (next_x - x);
      sum += (end - x) * (y + y_at_end) / 2;
      break;
    }
    sum += (next_x - x) * (y + next_y) / 2;
    x = next_x;
    y = next_y;
  }
  if (end == 1) {
    return sum;
  }
  const double least = end * end / 2;
  return 0.5 * (1 + (sum - least) / (end - least));
}

}  // namespace tutti

#endif
