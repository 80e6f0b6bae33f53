// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tutti/metrics/detail/mean_error.hpp>

namespace tutti {

/// Options of MeanAbsoluteError.
struct MeanAbsoluteErrorOptions {
  /// More than 1: a value for each column of [N, num_outputs], reported as "<name>_0", ...;
  /// compute() is their mean.
  std::int64_t num_outputs = 1;
  std::string name = "MeanAbsoluteError";  ///< under which it is logged
};

/// The mean of absolute differences.
///
/// outputs, targets: of one shape. NaN without examples.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.MeanAbsoluteError`.
class MeanAbsoluteError final : public detail::MeanError {
 public:
  explicit MeanAbsoluteError(MeanAbsoluteErrorOptions options = {})
      : MeanError(options.name, options.num_outputs), options_(std::move(options)) {}

  [[nodiscard]] const MeanAbsoluteErrorOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MeanAbsoluteError>(options_);
  }

 private:
  [[nodiscard]] at::Tensor errors(const at::Tensor& difference) const override {
    return difference.abs();
  }

  MeanAbsoluteErrorOptions options_;
};

}  // namespace tutti
