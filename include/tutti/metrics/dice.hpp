// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// Mean Dice coefficient of the foreground classes, in percent, rounded to two decimals.
///
/// outputs: scores [N, C, d1, ...] with class 0 the background. targets: classes [N, d1, ...] of an
/// integer type. Per batch a class scores 2*tp / (2*tp + fp + fn); one that no target names scores
/// 1 when it was never predicted, else 0. The value is the mean over batches and classes.
/// Source: MosaicML Composer, `composer.metrics.Dice`.
class Dice final : public detail::SumMetric {
 public:
  /// num_classes: foreground classes, one less than the outputs have; >= 1.
  /// Throws c10::Error (ValueError) otherwise.
  explicit Dice(std::int64_t num_classes) : num_classes_(num_classes) {
    TUTTI_CHECK_VALUE(num_classes >= 1, "Dice: num_classes is ", num_classes,
                      ", expected 1 or more foreground classes");
  }

  [[nodiscard]] std::string name() const override { return "Dice"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Dice>(num_classes_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    const double mean = 100 * states[0].mean().item<double>() / states[1].item<double>();
    return std::nearbyint(mean * 100) / 100;
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({num_classes_}, at::kDouble), at::zeros({}, at::kLong)};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    TUTTI_CHECK_VALUE(outputs.dim() == targets.dim() + 1 && outputs.size(1) == num_classes_ + 1,
                      "Dice: outputs ", outputs.sizes(), " and targets ", targets.sizes(),
                      ", expected scores [N, ", num_classes_ + 1, ", ...] (the background and ",
                      num_classes_, " classes) and classes [N, ...]");
    const at::Tensor wanted = targets.to(at::kLong);
    const at::Tensor predicted = outputs.argmax(1);
    const at::Tensor all = wanted.new_ones({}, at::kBool);
    const auto count = [&](const at::Tensor& classes, const at::Tensor& where) {
      return detail::class_counts(classes, where, num_classes_ + 1)
          .narrow(0, 1, num_classes_)
          .to(at::kDouble);
    };
    const at::Tensor there = count(wanted, all);
    const at::Tensor said = count(predicted, all);
    const at::Tensor right = count(wanted, predicted.eq(wanted));
    const at::Tensor score = right.mul(2).div(there.add(said));
    add({at::where(there.eq(0), said.eq(0).to(at::kDouble), score),
         wanted.new_ones({}, at::kLong)});
  }

  std::int64_t num_classes_;
};

}  // namespace tutti
