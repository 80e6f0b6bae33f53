// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/proc.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>

#include <dlfcn.h>

// NVIDIA's management library without its header and without linking it.

namespace tutti::detail {

/// What a GPU is doing. The order is that of gpu_load_names.
using GpuLoad = std::array<double, 4>;
inline constexpr std::array<const char*, 4> gpu_load_names{
    "gpu_percentage", "memory_percentage", "gpu_temperature_C", "gpu_power_usage_W"};

/// A function of a library that may be missing.
template <class F>
F* entry(void* library, const char* name) {
  return reinterpret_cast<F*>(::dlsym(library, name));
}

/// Asks about one CUDA device, found by its place on the bus, since NVML counts devices that
/// CUDA_VISIBLE_DEVICES hides.
class GpuProbe {
 public:
  /// index: as LibTorch counts devices. Does nothing when the libraries or the device are missing.
  void open(int index) {
    device_ = nullptr;
    void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void* nvml = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr || nvml == nullptr) {
      return;
    }
    auto* cu_init = entry<int(unsigned)>(driver, "cuInit");
    auto* cu_device = entry<int(int*, int)>(driver, "cuDeviceGet");
    auto* cu_bus_id = entry<int(char*, int, int)>(driver, "cuDeviceGetPCIBusId");
    auto* init = entry<int()>(nvml, "nvmlInit_v2");
    auto* by_bus_id = entry<int(const char*, void**)>(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
    utilization_ = entry<int(void*, Utilization*)>(nvml, "nvmlDeviceGetUtilizationRates");
    temperature_ = entry<int(void*, int, unsigned*)>(nvml, "nvmlDeviceGetTemperature");
    power_ = entry<int(void*, unsigned*)>(nvml, "nvmlDeviceGetPowerUsage");
    int device = 0;
    char bus_id[32] = "";
    const bool found = cu_init != nullptr && cu_device != nullptr && cu_bus_id != nullptr &&
                       init != nullptr && by_bus_id != nullptr && utilization_ != nullptr &&
                       temperature_ != nullptr && power_ != nullptr && cu_init(0) == 0 &&
                       cu_device(&device, index) == 0 &&
                       cu_bus_id(bus_id, sizeof bus_id, device) == 0 && init() == 0 &&
                       by_bus_id(bus_id, &device_) == 0;
    device_ = found ? device_ : nullptr;
  }

  /// The load now; what the device does not tell is 0. None when there is no device.
  [[nodiscard]] std::optional<GpuLoad> load() const {
    if (device_ == nullptr) {
      return std::nullopt;
    }
    Utilization busy;
    unsigned celsius = 0;
    unsigned milliwatts = 0;
    static_cast<void>(utilization_(device_, &busy));
    static_cast<void>(temperature_(device_, 0, &celsius));
    static_cast<void>(power_(device_, &milliwatts));
    return GpuLoad{static_cast<double>(busy.gpu), static_cast<double>(busy.memory),
                   static_cast<double>(celsius), milliwatts / 1000.0};
  }

 private:
  struct Utilization {
    unsigned gpu = 0;     // per cent of the last moments in which a kernel ran
    unsigned memory = 0;  // per cent in which memory was read or written
  };

  void* device_ = nullptr;
  int (*utilization_)(void*, Utilization*) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
};

}  // namespace tutti::detail

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
