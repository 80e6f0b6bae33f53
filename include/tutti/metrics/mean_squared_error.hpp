// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tutti/metrics/detail/mean_error.hpp>

namespace tutti {

/// Options of MeanSquaredError.
struct MeanSquaredErrorOptions {
  bool squared = true;  ///< false: its root
  /// More than 1: a value for each column of [N, num_outputs], reported as "<name>_0", ...;
  /// compute() is their mean.
  std::int64_t num_outputs = 1;
  std::string name{};  ///< under which it is logged; empty: "MeanSquaredError", or with squared =
                       ///< false "RootMeanSquaredError"
};

/// The mean of squared differences, or its root.
///
/// outputs, targets: of one shape. NaN without examples.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.MeanSquaredError`.
class MeanSquaredError final : public detail::MeanError {
 public:
  explicit MeanSquaredError(MeanSquaredErrorOptions options = {})
      : MeanError(!options.name.empty() ? options.name
                  : options.squared     ? "MeanSquaredError"
                                        : "RootMeanSquaredError",
                  options.num_outputs),
        options_(std::move(options)) {}

  [[nodiscard]] const MeanSquaredErrorOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MeanSquaredError>(options_);
  }

 private:
  [[nodiscard]] at::Tensor errors(const at::Tensor& difference) const override {
    return difference.square();
  }
  [[nodiscard]] double value_of(double mean) const override {
    return options_.squared ? mean : std::sqrt(mean);
  }

  MeanSquaredErrorOptions options_;
};

}  // namespace tutti
