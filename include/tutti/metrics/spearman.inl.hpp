// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/spearman.hpp>

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
