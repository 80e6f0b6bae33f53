// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/device_memory.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti {

namespace detail {

/// `value` with five significant digits.
double five_digits(double value);

/// The allocator's numbers as they are logged: GB (10^9 bytes), and how often it began anew.
inline std::vector<std::pair<std::string, double>> memory_report(
    const c10::CachingDeviceAllocator::DeviceStats& stats) {
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const std::pair<const char*, c10::CachingAllocator::Stat> kinds[] = {
      {"allocated_mem", stats.allocated_bytes[all]},
      {"active_mem", stats.active_bytes[all]},
      {"inactive_mem", stats.inactive_split_bytes[all]},
      {"reserved_mem", stats.reserved_bytes[all]}};
  std::vector<std::pair<std::string, double>> out;
  for (const auto& [kind, stat] : kinds) {
    out.emplace_back(std::string("current_") + kind,
                     five_digits(static_cast<double>(stat.current) / 1e9));
    out.emplace_back(std::string("peak_") + kind,
                     five_digits(static_cast<double>(stat.peak) / 1e9));
  }
  out.emplace_back("alloc_retries", static_cast<double>(stats.num_alloc_retries));
  return out;
}

}  // namespace detail

/// Logs how much memory LibTorch holds on the GPU.
///
/// At AfterTrainBatch, in GB (10^9 bytes): `memory/current_allocated_mem`,
/// `memory/current_active_mem`, `memory/current_inactive_mem`, `memory/current_reserved_mem`, the
/// same with `peak_` (since the program began), and `memory/alloc_retries`. With
/// dist_aggregate_batch_interval also each over all processes, with `_avg`, `_min`, `_max` behind.
/// On a CPU it warns at Init and logs nothing. The allocator counts on the host, so the device
/// never waits. Source: MosaicML Composer, `composer.callbacks.MemoryMonitor`.
struct MemoryMonitor final {
  Keys memory_keys{};  ///< names without `memory/` that are logged; empty: all of them
  std::int64_t dist_aggregate_batch_interval = 0;  ///< batches; 0: never over all processes

  static constexpr std::string_view name = "MemoryMonitor";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
  };
  using events = types<Init, AfterTrainBatch>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(dist_aggregate_batch_interval >= 0, "MemoryMonitor: dist_aggregate_batch_interval",
           dist_aggregate_batch_interval, "0 or more batches");
    for (const Key& key : memory_keys) {
      expect(known(key), "MemoryMonitor: a name in memory_keys", std::string_view(key),
             "alloc_retries or {current,peak}_{allocated,active,inactive,reserved}_mem");
    }
  }

  /// Throws c10::Error on a CUDA device when LibTorch is too old to tell.
  void apply(Init, const State& state) const;
  bool match(AfterTrainBatch, const State& state) const { return state.device.is_cuda(); }
  void apply(AfterTrainBatch, const State& state) const {
    report(state, detail::memory_report(detail::allocator_stats(state.device)));
  }

  /// Logs these numbers, as AfterTrainBatch does with those of the allocator.
  void report(const State& state, const std::vector<std::pair<std::string, double>>& numbers) const;

 private:
  static constexpr bool known(std::string_view key) {
    if (key == "alloc_retries") {
      return true;
    }
    for (std::string_view when : {"current_", "peak_"}) {
      for (std::string_view kind :
           {"allocated_mem", "active_mem", "inactive_mem", "reserved_mem"}) {
        if (key.starts_with(when) && key.substr(when.size()) == kind) {
          return true;
        }
      }
    }
    return false;
  }

  [[nodiscard]] bool wanted(std::string_view key) const;

  static void log(const State& state, const std::vector<std::string>& keys,
                  const std::vector<double>& values, std::string_view suffix);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/memory_monitor.inl.hpp>
#endif
