// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/metrics/detail/concat_metric.hpp>
#include <tutti/metrics/detail/regression.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti {

/// Options of SpearmanCorrCoef.
struct SpearmanCorrCoefOptions {
  /// More than 1: a value for each column of [N, num_outputs], reported as "<name>_0", ...;
  /// compute() is their mean.
  std::int64_t num_outputs = 1;
  std::string name = "SpearmanCorrCoef";  ///< under which it is logged
};

/// Spearman's correlation of outputs and targets: Pearson's of their ranks, equal numbers having
/// the mean of their ranks.
///
/// outputs, targets: [N] or [N, num_outputs], floating; ranked in single precision. Keeps all of
/// them. 0 when either side is constant; NaN without examples, where torchmetrics raises.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.SpearmanCorrCoef`, with its 1e-6 in the denominator.
class SpearmanCorrCoef final : public detail::ConcatMetric {
 public:
  explicit SpearmanCorrCoef(SpearmanCorrCoefOptions options = {}) : options_(std::move(options)) {
    detail::check_num_outputs(options_.name, options_.num_outputs);
  }

  [[nodiscard]] const SpearmanCorrCoefOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<SpearmanCorrCoef>(options_);
  }

  using ConcatMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return detail::average_of(values(states), {}, Average::macro);
  }
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override {
    if (options_.num_outputs == 1) {
      return to.value(compute(states));
    }
    detail::report_each(values(states), options_.name, to);
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> no_rows() const override {
    const at::Tensor none = at::zeros({0, options_.num_outputs}, at::kFloat);
    return {none, none};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    detail::check_correlation(options_.name, outputs, targets, options_.num_outputs);
    const auto rows = [&](const at::Tensor& x) {
      return x.reshape({-1, options_.num_outputs})
          .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    };
    add({rows(outputs), rows(targets)});
  }

  [[nodiscard]] std::vector<double> values(const std::vector<at::Tensor>& states) const;
  static std::vector<double> ranks(const float* x, std::size_t count);

  SpearmanCorrCoefOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

// Less their mean. x: contiguous.
TUTTI_INLINE std::vector<double> SpearmanCorrCoef::ranks(const float* x, std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::isnan(x[b]) ? !std::isnan(x[a]) : x[a] < x[b];  // NaN is highest
  });
  std::vector<double> out(count);
  const double mean = (static_cast<double>(count) + 1) / 2;
  for (std::size_t from = 0, to = 0; from < count; from = to) {
    for (to = from + 1; to < count && x[order[to]] == x[order[from]];) {
      ++to;
    }
    for (std::size_t i = from; i < to; ++i) {
      out[order[i]] = static_cast<double>(from + 1 + to) / 2 - mean;
    }
  }
  return out;
}

TUTTI_INLINE std::vector<double> SpearmanCorrCoef::values(
    const std::vector<at::Tensor>& states) const {
  const at::Tensor outputs = states[0].cpu().t().contiguous();  // [num_outputs, n]
  const at::Tensor targets = states[1].cpu().t().contiguous();
  const auto count = static_cast<std::size_t>(outputs.size(1));
  std::vector<double> out;
  for (std::int64_t i = 0; i < options_.num_outputs; ++i) {
    const auto x = ranks(outputs[i].const_data_ptr<float>(), count);
    const auto y = ranks(targets[i].const_data_ptr<float>(), count);
    const auto mean_product = [&](const auto& a, const auto& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0) / static_cast<double>(count);
    };
    const double deviations = std::sqrt(mean_product(x, x)) * std::sqrt(mean_product(y, y));
    out.push_back(std::clamp(mean_product(x, y) / (deviations + 1e-6), -1.0, 1.0));
  }
  return out;
}

}  // namespace tutti

#endif
