// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/memory_monitor.hpp>

namespace tutti::detail {

TUTTI_INLINE double five_digits(double value) {
  if (value == 0) {
    return 0;
  }
  const double scale = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void MemoryMonitor::apply(Init, const State& state) const {
  TUTTI_CHECK(!state.device.is_cuda() || detail::allocators_tell, "MemoryMonitor: LibTorch ",
              TORCH_VERSION,
              " does not tell what a device's allocator holds; use 2.9 or newer, "
              "or take MemoryMonitor out of the recipe");
  if (!state.device.is_cuda()) {
    TORCH_WARN("MemoryMonitor watches CUDA devices and the model is on ", state.device.str(),
               ", so nothing will be logged");
  }
}

TUTTI_INLINE void MemoryMonitor::report(
    const State& state, const std::vector<std::pair<std::string, double>>& numbers) const {
  std::vector<std::string> keys;
  std::vector<double> values;
  for (const auto& [key, value] : numbers) {
    if (wanted(key)) {
      keys.push_back("memory/" + key);
      values.push_back(value);
    }
  }
  log(state, keys, values, "");
  if (dist_aggregate_batch_interval > 0 &&
      state.timestamp.batch % dist_aggregate_batch_interval == 0) {
    for (const auto& [suffix, op] :
         {std::pair("_avg", dist::ReduceOp::mean), std::pair("_min", dist::ReduceOp::minimum),
          std::pair("_max", dist::ReduceOp::maximum)}) {
      std::vector<double> reduced = values;
      state.communicator->all_reduce(std::span<double>(reduced), op);
      log(state, keys, reduced, suffix);
    }
  }
}

TUTTI_INLINE bool MemoryMonitor::wanted(std::string_view key) const {
  for (const Key& wanted : memory_keys) {
    if (key == std::string_view(wanted)) {
      return true;
    }
  }
  return memory_keys.empty();
}

TUTTI_INLINE void MemoryMonitor::log(const State& state, const std::vector<std::string>& keys,
                                     const std::vector<double>& values, std::string_view suffix) {
  std::string key;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    key.assign(keys[i]).append(suffix);
    state.log_metrics({{key, values[i]}});
  }
}

}  // namespace tutti
