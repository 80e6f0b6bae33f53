// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/bucketize.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti {

/// How the errors of the bins make one.
enum class CalibrationNorm : std::uint8_t {
  l1,   ///< their mean, each weighted by its examples (the expected calibration error)
  l2,   ///< the root of the mean of their squares
  max,  ///< the largest
};

/// Options of CalibrationError.
struct CalibrationErrorOptions {
  Task task = Task::multiclass;  ///< binary or multiclass
  std::int64_t num_classes = 0;  ///< multiclass: needed
  std::int64_t n_bins = 15;      ///< bins of equal width in [0, 1]; >= 1
  CalibrationNorm norm = CalibrationNorm::l1;
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  std::string name{};  ///< under which it is logged; empty: "MulticlassCalibrationError", by task
};

/// How far confidence is from accuracy, in bins of confidence.
///
/// outputs: probabilities or logits, by Task; a batch with any number outside [0, 1] is one of
/// logits. The confidence is the highest probability, and the accuracy whether that class is right;
/// of a binary task it is the probability of 1, and the accuracy the target.
/// Without examples l1 is NaN, l2 and max are 0, where torchmetrics raises if there was no batch.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.CalibrationError`.
class CalibrationError final : public detail::SumMetric {
 public:
  explicit CalibrationError(CalibrationErrorOptions options = {});

  [[nodiscard]] const CalibrationErrorOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<CalibrationError>(options_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;

 private:
  // By bin, of which the last holds the confidence 1: examples, their confidences, their
  // accuracies.
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({3, options_.n_bins + 1}, at::kDouble)};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;

  CalibrationErrorOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/metrics/calibration_error.inl.hpp>
#endif
