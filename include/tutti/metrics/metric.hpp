// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/core/rule.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// The mean over examples of what a function says of them; made by metric().
template <detail::Text Name, class Function>
class FunctionMetric final : public detail::SumMetric {
  using Result = std::invoke_result_t<const Function&, const at::Tensor&, const at::Tensor&>;

 public:
  explicit FunctionMetric(Function function) : function_(std::move(function)) {}

  [[nodiscard]] std::string name() const override { return std::string(std::string_view(Name)); }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<FunctionMetric>(function_);
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
    if constexpr (std::convertible_to<Result, at::Tensor>) {
      const at::Tensor said = function_(outputs, targets);
      const std::int64_t examples = said.dim() == 0 ? count_of(outputs) : said.size(0);
      put(said.numel() == 0 ? at::zeros({}, said.options().dtype(at::kDouble))
                            : said.to(at::kDouble).mean(),
          examples);
    } else if constexpr (std::convertible_to<Result, double>) {
      const double said = static_cast<double>(function_(outputs, targets));
      put(at::zeros({}, outputs.options().dtype(at::kDouble)).fill_(said), count_of(outputs));
    }
  }

  static std::int64_t count_of(const at::Tensor& outputs) {
    return outputs.dim() == 0 ? 1 : outputs.size(0);
  }
  void put(const at::Tensor& mean, std::int64_t examples) {
    add({mean.mul(examples), mean.new_empty({}, at::kLong).fill_(examples)});
  }

  Function function_;
};

/// Makes a metric of a function: the mean over all examples of what it returns.
///
///     make_metrics(tutti::metric<"MAE">(
///         [](const at::Tensor& outputs, const at::Tensor& targets) {
///           return (outputs - targets).abs();
///         }))
///
/// function: outputs and targets of a batch to a tensor whose dimension 0 counts examples, of which
/// there may be fewer than in the batch (each is the mean of its entries), or to a number or scalar
/// that is the mean of the batch. Copies of the metric copy it. NaN without examples.
template <detail::Text Name, class Function>
  requires std::invocable<const Function&, const at::Tensor&, const at::Tensor&>
[[nodiscard]] FunctionMetric<Name, Function> metric(Function function) {
  using Result = std::invoke_result_t<const Function&, const at::Tensor&, const at::Tensor&>;
  static_assert(!std::string_view(Name).empty(),
                "tutti: the metric has no name; write metric<\"MAE\">(function).");
  static_assert(std::convertible_to<Result, at::Tensor> || std::convertible_to<Result, double>,
                "tutti: this function of a metric returns no number and no tensor; return "
                "at::Tensor, with an entry for each example, or double.");
  return FunctionMetric<Name, Function>(std::move(function));
}

}  // namespace tutti
