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
#include <tutti/callbacks/system_metrics_monitor.inl.hpp>
#endif
