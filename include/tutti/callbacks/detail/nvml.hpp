// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <array>
#include <optional>

/// NVIDIA's management library without its header and without linking it.
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
