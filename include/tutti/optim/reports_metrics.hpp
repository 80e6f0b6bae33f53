// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti::optim {

/// An optimizer that can say how it treats a parameter; found by dynamic_cast.
struct ReportsMetrics {
  virtual ~ReportsMetrics() = default;

  /// L2 norms after a step, as scalars on the parameter's device: `l2_norm/moment/<name>`,
  /// `l2_norm/param/<name>`, `l2_norm/update/<name>` (recomputed from the state), and
  /// `l2_norm/grad/<name>` while there is a gradient. None before the parameter's first step, nor
  /// from SGD.
  ///
  /// Difference from the reference: the numbers of the parameter's own group enter, not those of
  /// group 0.
  virtual std::vector<std::pair<std::string, at::Tensor>> report_per_parameter_metrics(
      const at::Tensor& parameter, const std::string& name) const = 0;
};

}  // namespace tutti::optim
