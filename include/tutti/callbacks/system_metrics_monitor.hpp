// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/callbacks/detail/nvml.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/proc.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti {

namespace detail {

// What a SystemMetricsMonitor holds between batches.
struct Machine {
  GpuProbe gpu;
  CpuTimes cpu;
};

/// The GPUs' numbers under the names that are logged.
///
/// loads: of every process, in their order. all: every process's as `<name>_rank_<r>`; else the
/// least and the largest only, as `min_<name>_rank_<r>` and `max_<name>_rank_<r>`.
NamedNumbers gpu_numbers(const std::vector<GpuLoad>& loads, bool all);

}  // namespace detail

/// Logs what the machine is doing.
///
/// At BatchStart, EvalBatchStart and PredictBatchStart: `cpu_percentage` (since the last time),
/// `cpu_memory_<field>`, `disk_memory_<field>` and `network_<field>` with the fields of Python's
/// psutil, in bytes, of this process's machine. On CUDA devices also `gpu_percentage`,
/// `memory_percentage` (of the time in which memory was busy), `gpu_temperature_C` and
/// `gpu_power_usage_W` of all processes: the least and the largest with the rank where it is,
/// `min_gpu_percentage_rank_3`, or with log_all_data every rank's, `gpu_percentage_rank_3`.
///
/// Reads /proc and asks NVIDIA's management library, if it is there; the device never waits, but
/// processes wait for each other once a batch.
/// Source: MosaicML Composer, `composer.callbacks.SystemMetricsMonitor`.
struct SystemMetricsMonitor final {
  bool log_all_data = false;  ///< every GPU's numbers, not only the least and the largest

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<detail::Machine> machine{};  ///< where its numbers are read
  } run{};

  static constexpr std::string_view name = "SystemMetricsMonitor";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
  };
  using events = types<Init, BatchStart, EvalBatchStart, PredictBatchStart>;

  void apply(Init, const State& state);
  void apply(BatchStart, const State& state) { look(state); }
  void apply(EvalBatchStart, const State& state) { look(state); }
  void apply(PredictBatchStart, const State& state) { look(state); }

 private:
  void look(const State& state);

  // Every process's GPU.
  [[nodiscard]] std::vector<detail::GpuLoad> gather(const State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
