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
#include <tutti/metrics/spearman.inl.hpp>
#endif
