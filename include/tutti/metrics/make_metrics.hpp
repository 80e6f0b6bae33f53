// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include <tutti/core/detail/make.hpp>
#include <tutti/core/metric.hpp>

namespace tutti {

/// Metrics as a model's metrics() returns them: `make_metrics(CrossEntropy{}, MIoU{21})`.
template <std::derived_from<Metric>... Ms>
[[nodiscard]] Metrics make_metrics(Ms... metrics) {
  return {detail::make<const Ms>(std::move(metrics))...};
}

}  // namespace tutti
