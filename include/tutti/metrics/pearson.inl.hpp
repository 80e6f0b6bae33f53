// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/pearson.hpp>

namespace tutti {

TUTTI_INLINE void PearsonCorrCoef::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  detail::check_correlation(options_.name, outputs, targets, options_.num_outputs);
  if (outputs.numel() == 0) {
    return;
  }
  // Sums of differences from the first example: those of equal numbers are exactly 0.
  const at::Tensor x = detail::regression_rows(outputs, options_.num_outputs);
  const at::Tensor y = detail::regression_rows(targets, options_.num_outputs);
  const at::Tensor center_x = x[0].add(x.sub(x[0]).mean(0));
  const at::Tensor center_y = y[0].add(y.sub(y[0]).mean(0));
  const at::Tensor dx = x.sub(center_x);
  const at::Tensor dy = y.sub(center_y);
  const bool doubles = outputs.dim() == 2 && outputs.scalar_type() == at::kDouble &&
                       targets.scalar_type() == at::kDouble;
  at::Tensor row = x.new_empty({1, options_.num_outputs, moments});
  const auto put = [&](Moment moment, const at::Tensor& value) {
    row.select(2, moment).copy_(value.unsqueeze(0));
  };
  row.select(2, n).fill_(x.size(0));
  constexpr auto single = static_cast<double>(std::numeric_limits<float>::epsilon());
  constexpr double twice = std::numeric_limits<double>::epsilon();
  row.select(2, bound).fill_(std::sqrt(doubles ? twice : single));
  put(mean_x, center_x);
  put(mean_y, center_y);
  put(var_x, dx.square().sum(0));
  put(var_y, dy.square().sum(0));
  put(cov, dx.mul(dy).sum(0));
  put(min_x, x.amin(0));
  put(max_x, x.amax(0));
  put(min_y, y.amin(0));
  put(max_y, y.amax(0));
  add({row});
}

// Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
TUTTI_INLINE void PearsonCorrCoef::merge(double* all, const double* more) {
  const double total = all[n] + more[n];
  const double dx = more[mean_x] - all[mean_x];
  const double dy = more[mean_y] - all[mean_y];
  const double weight = all[n] * more[n] / total;
  all[var_x] += more[var_x] + weight * dx * dx;
  all[var_y] += more[var_y] + weight * dy * dy;
  all[cov] += more[cov] + weight * dx * dy;
  all[mean_x] += dx * more[n] / total;
  all[mean_y] += dy * more[n] / total;
  all[min_x] = std::min(all[min_x], more[min_x]);
  all[max_x] = std::max(all[max_x], more[max_x]);
  all[min_y] = std::min(all[min_y], more[min_y]);
  all[max_y] = std::max(all[max_y], more[max_y]);
  all[bound] = std::max(all[bound], more[bound]);
  all[n] = total;
}

TUTTI_INLINE double PearsonCorrCoef::correlation(const double* all) {
  const double largest_x = std::max(all[max_x] - all[mean_x], all[mean_x] - all[min_x]);
  const double largest_y = std::max(all[max_y] - all[mean_y], all[mean_y] - all[min_y]);
  const double x = all[var_x] / (all[n] - 1) / (largest_x * largest_x);
  const double y = all[var_y] / (all[n] - 1) / (largest_y * largest_y);
  if (!(x >= all[bound]) || !(y >= all[bound]) || !std::isfinite(x) || !std::isfinite(y)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return std::clamp(all[cov] / std::sqrt(all[var_x] * all[var_y]), -1.0, 1.0);
}

TUTTI_INLINE std::vector<double> PearsonCorrCoef::values(
    const std::vector<at::Tensor>& states) const {
  const at::Tensor rows = states[0].cpu().contiguous();
  const std::int64_t count = rows.size(0);
  if (count == 0) {
    return std::vector<double>(static_cast<std::size_t>(options_.num_outputs),
                               std::numeric_limits<double>::quiet_NaN());
  }
  const auto* moment = rows.const_data_ptr<double>();
  std::vector<double> out;
  for (std::int64_t i = 0; i < options_.num_outputs; ++i) {
    double all[moments];
    std::copy_n(moment + i * moments, std::size_t{moments}, all);
    for (std::int64_t row = 1; row < count; ++row) {
      merge(all, moment + (row * options_.num_outputs + i) * moments);
    }
    out.push_back(correlation(all));
  }
  return out;
}

}  // namespace tutti
