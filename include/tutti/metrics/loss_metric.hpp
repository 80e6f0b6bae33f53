// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// The mean over batches of any loss.
///
///     tutti::LossMetric dice{tutti::DiceLoss{.softmax = true}, "DiceLoss"};
///
/// Source: MosaicML Composer, `composer.metrics.LossMetric`.
class LossMetric final : public detail::SumMetric {
 public:
  /// outputs and targets of a batch to a scalar.
  using Function = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

  /// name: under which it is logged.
  explicit LossMetric(Function loss, std::string name = "LossMetric")
      : loss_(std::move(loss)), name_(std::move(name)) {
    TUTTI_CHECK_VALUE(loss_, "LossMetric: no loss was given");
  }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<LossMetric>(loss_, name_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].item<double>() / states[1].item<double>();
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({}, at::kDouble), at::zeros({}, at::kLong)};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor loss = loss_(outputs, targets).to(at::kDouble);
    TUTTI_CHECK(loss.dim() == 0, name_, ": the loss gave ", loss.sizes(), ", expected a scalar");
    add({loss, loss.new_ones({}, at::kLong)});
  }

  Function loss_;
  std::string name_;
};

}  // namespace tutti
