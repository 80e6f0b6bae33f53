// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/optimizer_monitor.hpp>

namespace tutti {

TUTTI_INLINE void OptimizerMonitor::apply(BatchEnd, const State& state) const {
  std::vector<std::string> keys;
  std::vector<at::Tensor> norms;
  for (const auto& parameter : state.model->named_parameters()) {
    bool has_gradient_norm = false;
    const std::string gradient_key = "l2_norm/grad/" + parameter.key();
    const at::Tensor own =
        state.sharding != nullptr ? state.sharding->shard_of(parameter.value()) : parameter.value();
    for (auto& [key, norm] : metrics_of(state, own, parameter.key())) {
      has_gradient_norm = has_gradient_norm || key == gradient_key;
      keys.push_back(std::move(key));
      norms.push_back(std::move(norm));
    }
    if (!has_gradient_norm && own.grad().defined()) {
      keys.push_back(gradient_key);
      norms.push_back(own.grad().norm());
    }
  }
  if (!norms.empty()) {
    log(state, keys, norms);
  }
}

TUTTI_INLINE void OptimizerMonitor::log(const State& state, const std::vector<std::string>& keys,
                                        std::vector<at::Tensor>& norms) {
  for (at::Tensor& norm : norms) {
    norm = norm.to(state.device, at::kFloat);
  }
  at::Tensor all = at::stack(norms);
  if (state.sharding != nullptr) {  // of the parts of all ranks together
    all = all.to(at::kDouble).square_();
    state.sharding->shard_group().all_reduce(all);
    all.sqrt_();
  }
  if (!state.logger.wants_metrics()) {
    return;
  }
  const at::Tensor values = all.to(at::kCPU, at::kDouble);
  std::vector<LoggedMetric> metrics;
  double squares = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double value = values.const_data_ptr<double>()[i];
    metrics.push_back({keys[i], value});
    squares += keys[i].starts_with("l2_norm/grad/") ? value * value : 0;
  }
  metrics.push_back({"l2_norm/grad/global", std::sqrt(squares)});
  state.logger.log_metrics(metrics, state.timestamp.batch);
}

}  // namespace tutti
