// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/r2_score.hpp>

namespace tutti {

TUTTI_INLINE void R2Score::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  TUTTI_CHECK_VALUE(outputs.dim() == 1 || outputs.dim() == 2, options_.name, ": outputs ",
                    outputs.sizes(), ", expected [N] or [N, K]");
  const std::int64_t columns = outputs.dim() == 2 ? outputs.size(1) : 1;
  detail::check_regression(options_.name, outputs, targets, columns);
  if (outputs.numel() == 0) {
    return;
  }
  const at::Tensor y = detail::regression_rows(targets, columns);
  // Sums of differences from the first example: those of equal numbers are exactly 0.
  const at::Tensor center = y[0].add(y.sub(y[0]).mean(0));
  at::Tensor row = y.new_empty({1, columns, moments});
  row.select(2, n).fill_(y.size(0));
  row.select(2, mean).copy_(center.unsqueeze(0));
  row.select(2, total).copy_(y.sub(center).square_().sum(0, /*keepdim=*/true));
  row.select(2, residual)
      .copy_(y.sub(detail::regression_rows(outputs, columns)).square_().sum(0, /*keepdim=*/true));
  add({row});
}

TUTTI_INLINE std::vector<std::vector<double>> R2Score::merged(const at::Tensor& rows) {
  const std::int64_t columns = rows.size(1);
  const auto* moment = rows.const_data_ptr<double>();
  std::vector<std::vector<double>> out;
  for (std::int64_t i = 0; i < columns; ++i) {
    std::vector<double> all(moments, 0);
    for (std::int64_t row = 0; row < rows.size(0); ++row) {
      const double* more = moment + (row * columns + i) * moments;
      const double difference = more[mean] - all[mean];
      const double count = all[n] + more[n];
      all[total] += more[total] + difference * difference * all[n] * more[n] / count;
      all[residual] += more[residual];
      all[mean] += difference * more[n] / count;
      all[n] = count;
    }
    out.push_back(std::move(all));
  }
  return out;
}

TUTTI_INLINE double R2Score::score(const std::vector<double>& all) const {
  if (all[n] < 2) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (all[residual] <= 1e-4) {
    return 1;
  }
  return all[total] <= 1e-4 ? 0 : 1 - all[residual] / all[total];
}

TUTTI_INLINE double R2Score::adjust(double score, double count) const {
  const auto regressors = static_cast<double>(options_.adjusted);
  return regressors == 0 || regressors >= count - 1
             ? score
             : 1 - (1 - score) * (count - 1) / (count - regressors - 1);
}

TUTTI_INLINE double R2Score::compute(const std::vector<at::Tensor>& states) const {
  const auto outputs = merged(states[0].cpu().contiguous());
  double sum = 0;
  double weights = 0;
  for (const auto& all : outputs) {
    const double weight = options_.multioutput == MultiOutput::variance_weighted ? all[total] : 1;
    sum += weight * score(all);
    weights += weight;
  }
  return adjust(sum / weights, outputs.front()[n]);
}

TUTTI_INLINE void R2Score::report(const std::vector<at::Tensor>& states, MetricReport& to) const {
  if (options_.multioutput != MultiOutput::raw_values) {
    return to.value(compute(states));
  }
  std::vector<double> values;
  for (const auto& all : merged(states[0].cpu().contiguous())) {
    values.push_back(adjust(score(all), all[n]));
  }
  detail::report_each(values, options_.name, to);
}

}  // namespace tutti
