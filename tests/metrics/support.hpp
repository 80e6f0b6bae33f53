// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <tutti/core/metric.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

// Feeds a golden case to a metric; its value after every update must be the reference's. The same
// batches dealt to two metrics whose states are summed must end at the same value.
inline void check_against_reference(const golden::Case& c, tutti::Metric& metric) {
  const auto updates = c.params["updates"].integer();
  const auto other = metric.clone();
  const auto half = metric.clone();
  std::vector<double> values;
  for (std::int64_t i = 0; i < updates; ++i) {
    const auto number = std::to_string(i);
    metric.update(c.in("preds" + number), c.in("target" + number));
    values.push_back(metric.compute());
    (i % 2 == 0 ? half : other)->update(c.in("preds" + number), c.in("target" + number));
  }
  CHECK_GOLDEN(c, "values", at::tensor(values, at::kDouble));
  auto sums = half->states();
  const auto more = other->states();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = sums[i] + more[i];
  }
  INFO(c.name << " over two ranks");
  CHECK(std::abs(metric.compute(sums) - values.back()) <= 1e-9 * std::abs(values.back()));
}

// The same for every case of a function, with the metric that make(arguments) returns.
template <class Make>
void check_against_reference(const std::string& function, Make make) {
  for (const auto& c : golden::cases(function)) {
    auto metric = make(c.params["args"]);
    check_against_reference(c, metric);
  }
}
