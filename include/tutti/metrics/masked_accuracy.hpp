// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// The fraction of right classes among the places that are not ignored.
///
/// outputs: scores [..., C]. targets: classes [...] of an integer type.
/// Source: MosaicML Composer, `composer.metrics.MaskedAccuracy`.
class MaskedAccuracy final : public detail::SumMetric {
 public:
  /// ignore_index: targets left out.
  explicit MaskedAccuracy(std::int64_t ignore_index = -100) : ignore_index_(ignore_index) {}

  [[nodiscard]] std::string name() const override { return "MaskedAccuracy"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MaskedAccuracy>(ignore_index_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].item<double>() / states[1].item<double>();
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({}, at::kLong), at::zeros({}, at::kLong)};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor predicted = outputs.argmax(-1);
    TUTTI_CHECK_VALUE(predicted.sizes() == targets.sizes(), "MaskedAccuracy: outputs ",
                      outputs.sizes(), " and targets ", targets.sizes(),
                      ", expected scores [..., C] and classes [...]");
    const at::Tensor counted = targets.ne(ignore_index_);
    add({predicted.eq(targets).logical_and_(counted).sum(), counted.sum()});
  }

  std::int64_t ignore_index_;
};

}  // namespace tutti
