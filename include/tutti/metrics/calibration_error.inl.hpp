// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/calibration_error.hpp>

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
