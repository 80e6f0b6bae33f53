// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include <tutti/callbacks/detail/clock_unit.hpp>
#include <tutti/callbacks/detail/device_flops.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/spread_model.hpp>

namespace tutti {

namespace detail {

// What a SpeedMonitor has seen of the last batches; times in nanoseconds of training.
struct SpeedWindow {
  std::deque<std::int64_t> samples, tokens, times;
  std::deque<double> flops;
  std::int64_t eval_time = 0;
  double peak = 0;  // of one device, floating-point operations per second; 0: not known
};

template <class T>
void push(std::deque<T>& window, T value, std::int64_t size) {
  window.push_back(value);
  while (window.size() > static_cast<std::size_t>(size)) {
    window.pop_front();
  }
}

template <class T>
void save_window(Archive& archive, std::string_view name, const std::deque<T>& window) {
  archive.put(name, std::vector<T>(window.begin(), window.end()));
}
template <class T>
void load_window(const Archive& archive, std::string_view name, std::deque<T>& window) {
  const auto saved = archive.get<std::vector<T>>(name);
  window.assign(saved.begin(), saved.end());
}

}  // namespace detail

/// Logs how fast training goes, over a window of batches.
///
/// At BatchEnd, once window_size + 1 batches have been seen: `throughput/batches_per_sec`,
/// `throughput/samples_per_sec`, `throughput/tokens_per_sec` (when batches have tokens), each also
/// as `throughput/device/...`, divided by the number of processes. A model with
/// `flops_per_batch(batch)` adds `throughput/flops_per_sec`, `throughput/device/flops_per_sec` and,
/// where the device's peak is known, `throughput/device/mfu`. Every batch: `time/train`,
/// `time/val`, `time/total` in time_unit. Evaluation counts in the last two only.
///
/// Difference from the reference: a checkpoint keeps the window, so a resumed run goes on logging.
/// Source: MosaicML Composer, `composer.callbacks.SpeedMonitor`.
struct SpeedMonitor final {
  std::int64_t window_size = 100;          ///< batches; >= 1
  Maybe<double> gpu_flops_available{};     ///< peak of one device, 1/s; not set: by its name
  ClockUnit time_unit = ClockUnit::hours;  ///< of time/*

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<detail::SpeedWindow> window{};  ///< the latest batches
  } run{};

  static constexpr std::string_view name = "SpeedMonitor";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, BatchEnd, EvalEnd>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(window_size >= 1, "SpeedMonitor: window_size", window_size, "at least 1 batch");
    expect(!gpu_flops_available || *gpu_flops_available >= 0, "SpeedMonitor: gpu_flops_available",
           *gpu_flops_available, "0 or more");
  }

  /// Models that say how much they compute look at the batch.
  [[nodiscard]] bool reads_batch(const State& state) const {
    return state.task.has_flops_per_batch();
  }

  void apply(Init, const State& state) {
    run.window->peak = gpu_flops_available ? *gpu_flops_available : peak_of(state);
  }
  void apply(BatchEnd, const State& state);
  void apply(EvalEnd, const State& state) {
    run.window->eval_time += state.eval_timestamp.total_wct.count();
  }

  /// Saves the window and the time spent in evaluation.
  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  static double peak_of(const State& state);

  [[nodiscard]] bool full(std::size_t seen) const {
    return seen == static_cast<std::size_t>(window_size) + 1;
  }
  [[nodiscard]] double seconds() const;

  void log_throughput(const State& state) const;

  void log_flops(const State& state) const;

  void log_times(const State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/speed_monitor.inl.hpp>
#endif
