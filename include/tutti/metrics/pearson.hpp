// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/metrics/detail/concat_metric.hpp>
#include <tutti/metrics/detail/regression.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti {

/// Options of PearsonCorrCoef.
struct PearsonCorrCoefOptions {
  /// More than 1: a value for each column of [N, num_outputs], reported as "<name>_0", ...;
  /// compute() is their mean.
  std::int64_t num_outputs = 1;
  std::string name = "PearsonCorrCoef";  ///< under which it is logged
};

/// Pearson's correlation of outputs and targets.
///
/// outputs, targets: [N] or [N, num_outputs], floating. NaN with fewer than two examples, and when
/// the variance of either side, over the square of its largest deviation from the mean, is below
/// 3.5e-4 (1.5e-8 for doubles of shape [N, num_outputs]), as in the reference: a constant side, but
/// also thousands of examples with a single outlier.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.PearsonCorrCoef`.
class PearsonCorrCoef final : public detail::ConcatMetric {
 public:
  explicit PearsonCorrCoef(PearsonCorrCoefOptions options = {}) : options_(std::move(options)) {
    detail::check_num_outputs(options_.name, options_.num_outputs);
  }

  [[nodiscard]] const PearsonCorrCoefOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<PearsonCorrCoef>(options_);
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
  // What a state keeps of a batch, for each output: one row of these.
  enum Moment { n, bound, mean_x, mean_y, var_x, var_y, cov, min_x, max_x, min_y, max_y, moments };

  [[nodiscard]] std::vector<at::Tensor> no_rows() const override {
    return {at::zeros({0, options_.num_outputs, moments}, at::kDouble)};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;
  [[nodiscard]] std::vector<double> values(const std::vector<at::Tensor>& states) const;
  static void merge(double* all, const double* more);
  static double correlation(const double* all);

  PearsonCorrCoefOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/metrics/pearson.inl.hpp>
#endif
