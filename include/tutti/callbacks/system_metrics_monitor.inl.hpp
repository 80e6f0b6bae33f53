// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/system_metrics_monitor.hpp>

namespace tutti::detail {

TUTTI_INLINE NamedNumbers gpu_numbers(const std::vector<GpuLoad>& loads, bool all) {
  NamedNumbers out;
  for (std::size_t i = 0; i < gpu_load_names.size(); ++i) {
    const std::string name = gpu_load_names[i];
    std::size_t least = 0;
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < loads.size(); ++rank) {
      least = loads[rank][i] < loads[least][i] ? rank : least;
      most = loads[rank][i] > loads[most][i] ? rank : most;
      if (all) {
        out.emplace_back(name + "_rank_" + std::to_string(rank), loads[rank][i]);
      }
    }
    if (!all && !loads.empty()) {
      out.emplace_back("min_" + name + "_rank_" + std::to_string(least), loads[least][i]);
      out.emplace_back("max_" + name + "_rank_" + std::to_string(most), loads[most][i]);
    }
  }
  return out;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void SystemMetricsMonitor::apply(Init, const State& state) {
  run.machine->cpu = detail::cpu_times(detail::file_text("/proc/stat"));
  if (state.device.is_cuda()) {
    run.machine->gpu.open(state.device.index());
    if (!run.machine->gpu.load()) {
      TORCH_WARN("SystemMetricsMonitor: libnvidia-ml.so.1 is missing or does not know device ",
                 state.device.str(), "; its numbers are logged as 0");
    }
  }
}

TUTTI_INLINE void SystemMetricsMonitor::look(const State& state) {
  detail::NamedNumbers numbers;
  if (state.device.is_cuda()) {
    numbers = detail::gpu_numbers(gather(state), log_all_data);
  }
  if (!state.logger.wants_metrics()) {
    return;
  }
  const auto append = [&](const detail::NamedNumbers& more) {
    numbers.insert(numbers.end(), more.begin(), more.end());
  };
  const detail::CpuTimes cpu = detail::cpu_times(detail::file_text("/proc/stat"));
  append({{"cpu_percentage", detail::cpu_percentage(run.machine->cpu, cpu)}});
  run.machine->cpu = cpu;
  append(detail::memory_numbers(detail::file_text("/proc/meminfo")));
  append(detail::disk_numbers());
  append(detail::network_numbers(detail::file_text("/proc/net/dev")));
  std::vector<LoggedMetric> metrics;
  for (const auto& [key, value] : numbers) {
    metrics.push_back({key, value});
  }
  state.logger.log_metrics(metrics, state.timestamp.batch);
}

TUTTI_INLINE std::vector<detail::GpuLoad> SystemMetricsMonitor::gather(const State& state) const {
  const detail::GpuLoad own = run.machine->gpu.load().value_or(detail::GpuLoad{});
  const std::string bytes(reinterpret_cast<const char*>(own.data()), sizeof own);
  std::vector<detail::GpuLoad> all;
  for (const std::string& other : state.communicator->all_gather_bytes(bytes)) {
    std::memcpy(all.emplace_back().data(), other.data(), sizeof own);
  }
  return all;
}

}  // namespace tutti
