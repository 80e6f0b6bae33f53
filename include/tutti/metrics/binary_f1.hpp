// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// F1 score of class 1 against class 0: tp / (tp + (fp + fn) / 2). NaN when class 1 never occurs.
///
/// outputs: scores [N, 2, ...]. targets: classes [N, ...] of an integer type, 0 or 1.
/// Source: MosaicML Composer, `composer.metrics.BinaryF1Score`.
class BinaryF1Score final : public detail::SumMetric {
 public:
  [[nodiscard]] std::string name() const override { return "BinaryF1Score"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<BinaryF1Score>();
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    const double both = states[0].item<double>();
    return both / (both + 0.5 * (states[1].item<double>() + states[2].item<double>()));
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    const at::Tensor none = at::zeros({}, at::kLong);
    return {none, none, none};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    TUTTI_CHECK_VALUE(outputs.dim() == targets.dim() + 1 && outputs.size(1) == 2,
                      "BinaryF1Score: outputs ", outputs.sizes(), " and targets ", targets.sizes(),
                      ", expected scores [N, 2, ...] and classes [N, ...]");
    const at::Tensor said = outputs.argmax(1).eq(1);
    const at::Tensor there = targets.eq(1);
    const at::Tensor both = said.logical_and(there).sum();
    add({both, said.logical_and(targets.eq(0)).sum(), there.sum().sub(both)});
  }
};

}  // namespace tutti
