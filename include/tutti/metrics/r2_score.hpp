// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/concat_metric.hpp>
#include <tutti/metrics/detail/regression.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti {

/// How R2Score makes one value of several outputs.
enum class MultiOutput : std::uint8_t {
  uniform_average,    ///< their mean
  variance_weighted,  ///< their mean, each weighted by the variance of its targets
  raw_values,         ///< a value for each
};

/// Options of R2Score.
struct R2ScoreOptions {
  std::int64_t adjusted = 0;  ///< number of independent regressors to adjust for; 0: not adjusted,
                              ///< as with fewer than two examples more than that
  MultiOutput multioutput = MultiOutput::uniform_average;
  std::string name = "R2Score";  ///< under which it is logged
};

/// The fraction of the targets' variance that the outputs explain: 1 - residual / total sum of
/// squares.
///
/// outputs, targets: [N] or [N, K]. Sums of squares up to 1e-4 are 0: without a residual the value
/// is 1, with one and constant targets 0. NaN with fewer than two examples, where torchmetrics
/// raises. MultiOutput::raw_values reports each output as "<name>_0", ..., and compute() is their
/// mean. Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.R2Score`.
class R2Score final : public detail::ConcatMetric {
 public:
  explicit R2Score(R2ScoreOptions options = {}) : options_(std::move(options)) {
    TUTTI_CHECK_VALUE(options_.adjusted >= 0, options_.name, ": adjusted is ", options_.adjusted,
                      ", expected 0 or more");
  }

  [[nodiscard]] const R2ScoreOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<R2Score>(options_);
  }

  using ConcatMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

 private:
  // What a state keeps of a batch, for each output: one row of these.
  enum Moment { n, mean, total, residual, moments };

  [[nodiscard]] std::vector<at::Tensor> no_rows() const override {
    return {at::zeros({0, 1, moments}, at::kDouble)};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;

  // The moments of all batches, by output.
  static std::vector<std::vector<double>> merged(const at::Tensor& rows);
  [[nodiscard]] double score(const std::vector<double>& all) const;
  [[nodiscard]] double adjust(double score, double count) const;

  R2ScoreOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/metrics/r2_score.inl.hpp>
#endif
