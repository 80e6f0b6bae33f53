// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include <tutti/callbacks/detail/clock_unit.hpp>
#include <tutti/callbacks/detail/cuda_driver.hpp>
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

namespace tutti {

TUTTI_INLINE void SpeedMonitor::apply(BatchEnd, const State& state) {
  const Timestamp& now = state.timestamp;
  detail::push(run.window->samples, now.sample, window_size + 1);
  detail::push(run.window->tokens, now.token, window_size + 1);
  detail::push(run.window->times, std::int64_t{now.total_wct.count()}, window_size + 1);
  if (state.task.has_flops_per_batch()) {
    const double flops = state.task.flops_per_batch(state.batch);
    detail::push(run.window->flops,
                 dist::data_group(state)->all_reduce_value(flops, dist::ReduceOp::sum),
                 window_size + 1);
  }
  if (state.logger.wants_metrics()) {
    log_throughput(state);
    log_flops(state);
    log_times(state);
  }
}

TUTTI_INLINE void SpeedMonitor::save(Archive& archive) const {
  archive.put("total_eval_wct", run.window->eval_time);
  detail::save_window(archive, "samples", run.window->samples);
  detail::save_window(archive, "tokens", run.window->tokens);
  detail::save_window(archive, "times", run.window->times);
  detail::save_window(archive, "flops", run.window->flops);
}

TUTTI_INLINE void SpeedMonitor::load(const Archive& archive) {
  run.window->eval_time = archive.get<std::int64_t>("total_eval_wct");
  detail::load_window(archive, "samples", run.window->samples);
  detail::load_window(archive, "tokens", run.window->tokens);
  detail::load_window(archive, "times", run.window->times);
  detail::load_window(archive, "flops", run.window->flops);
}

TUTTI_INLINE double SpeedMonitor::peak_of(const State& state) {
  if (!state.device.is_cuda() || !state.task.has_flops_per_batch()) {
    return 0;
  }
  const std::string device = detail::cuda_device_name(state.device.index());
  const detail::PeakFlops peak = detail::peak_flops_of(device);
  const double flops =
      state.precision == Precision::amp_fp16 ? peak.fp16
      : state.precision == Precision::amp_bf16 || state.precision == Precision::bf16_true
          ? peak.bf16
          : peak.fp32;
  if (flops == 0) {
    TORCH_WARN("SpeedMonitor: the peak of \"", device, "\" in ", to_string(state.precision),
               " is not known, so throughput/device/mfu is not logged; set "
               "SpeedMonitor::gpu_flops_available to it");
  }
  return flops;
}

TUTTI_INLINE double SpeedMonitor::seconds() const {
  return detail::to_seconds(
      std::chrono::nanoseconds(run.window->times.back() - run.window->times.front()));
}

TUTTI_INLINE void SpeedMonitor::log_throughput(const State& state) const {
  if (!full(run.window->times.size())) {
    return;
  }
  const double elapsed = seconds();
  const double world = state.world_size;
  const double batches = static_cast<double>(window_size) / elapsed;
  const double samples =
      static_cast<double>(run.window->samples.back() - run.window->samples.front()) / elapsed;
  state.log_metrics({{"throughput/batches_per_sec", batches},
                     {"throughput/samples_per_sec", samples},
                     {"throughput/device/batches_per_sec", batches / world},
                     {"throughput/device/samples_per_sec", samples / world}});
  if (run.window->tokens.back() > run.window->tokens.front()) {
    const double tokens =
        static_cast<double>(run.window->tokens.back() - run.window->tokens.front()) / elapsed;
    state.log_metrics({{"throughput/tokens_per_sec", tokens},
                       {"throughput/device/tokens_per_sec", tokens / world}});
  }
}

TUTTI_INLINE void SpeedMonitor::log_flops(const State& state) const {
  if (!full(run.window->flops.size())) {
    return;
  }
  double sum = 0;
  for (std::size_t i = 1; i < run.window->flops.size(); ++i) {
    sum += run.window->flops[i];
  }
  const double flops = sum / seconds();
  const double device = flops / state.world_size;
  state.log_metrics(
      {{"throughput/flops_per_sec", flops}, {"throughput/device/flops_per_sec", device}});
  if (run.window->peak > 0) {
    state.log_metrics({{"throughput/device/mfu", device / run.window->peak}});
  }
}

TUTTI_INLINE void SpeedMonitor::log_times(const State& state) const {
  const double unit = detail::seconds_in(time_unit);
  const double train = detail::to_seconds(state.timestamp.total_wct) / unit;
  const double val = detail::to_seconds(std::chrono::nanoseconds(run.window->eval_time)) / unit;
  state.log_metrics({{"time/train", train}, {"time/val", val}, {"time/total", train + val}});
}

}  // namespace tutti

#endif
