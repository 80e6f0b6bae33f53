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

namespace tutti {

TUTTI_INLINE CalibrationError::CalibrationError(CalibrationErrorOptions options)
    : options_(std::move(options)) {
  if (options_.name.empty()) {
    options_.name = detail::task_name(options_.task, "CalibrationError");
  }
  TUTTI_CHECK_VALUE(options_.task != Task::multilabel, options_.name,
                    ": the task is multilabel, expected binary or multiclass");
  detail::task_columns(options_.name, options_.task, options_.num_classes, 0);
  TUTTI_CHECK_VALUE(options_.n_bins >= 1, options_.name, ": n_bins is ", options_.n_bins,
                    ", expected 1 or more");
}

TUTTI_INLINE void CalibrationError::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  detail::check_task_shapes(options_.name, options_.task, options_.num_classes, outputs, targets);
  TUTTI_CHECK_VALUE(outputs.is_floating_point(), options_.name, ": outputs are ",
                    outputs.scalar_type(), ", expected scores of a floating type");
  const at::Tensor wanted = targets.flatten();
  const at::Tensor counted = detail::counted_places(wanted, options_.ignore_index);
  at::Tensor confidence;
  at::Tensor accuracy;
  if (options_.task == Task::binary) {
    confidence = detail::sigmoid_of_logits(outputs.flatten(), counted);
    accuracy = wanted;
  } else {
    const at::Tensor scores = detail::softmax_of_logits(detail::columns_last(outputs), counted);
    const auto [highest, best] = scores.max(1);
    confidence = highest.to(at::kFloat);
    accuracy = best.eq(wanted);
  }
  const at::Tensor edges = at::linspace(0, 1, options_.n_bins + 1, confidence.options());
  const at::Tensor bin = at::bucketize(confidence, edges, /*out_int32=*/false, /*right=*/true)
                             .sub(1)
                             .masked_fill(counted.logical_not(), options_.n_bins + 1);
  at::Tensor bins = at::zeros({3, options_.n_bins + 2}, confidence.options().dtype(at::kDouble));
  bins.select(0, 0).scatter_add_(0, bin, bin.new_ones({1}, at::kDouble).expand_as(bin));
  bins.select(0, 1).scatter_add_(0, bin, confidence.to(at::kDouble));
  bins.select(0, 2).scatter_add_(0, bin, accuracy.to(at::kDouble));
  add({bins.narrow(1, 0, options_.n_bins + 1)});
}

TUTTI_INLINE double CalibrationError::compute(const std::vector<at::Tensor>& states) const {
  const at::Tensor bins = states[0].cpu().contiguous();
  const std::int64_t size = options_.n_bins + 1;
  const auto* count = bins.const_data_ptr<double>();
  double total = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    total += count[i];
  }
  const auto mean = [&](double sum, double n) {
    return n == 0 || std::isnan(sum) ? 0 : sum / n;  // as the reference takes NaN
  };
  double sum = 0;
  double largest = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const double error =
        std::abs(mean(count[2 * size + i], count[i]) - mean(count[size + i], count[i]));
    sum += (options_.norm == CalibrationNorm::l2 ? error * error : error) * count[i] / total;
    largest = std::max(largest, error);
  }
  switch (options_.norm) {
    case CalibrationNorm::l1:
      return sum;
    case CalibrationNorm::l2:
      return sum > 0 ? std::sqrt(sum) : 0;
    case CalibrationNorm::max:
      return largest;
  }
  return sum;
}

}  // namespace tutti

#endif
