// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/speed_monitor.hpp>

#include <string>

#include <dlfcn.h>

// What the CUDA driver says, without its headers and without linking it.

namespace tutti::detail {

/// The name of a CUDA device, "NVIDIA H200"; empty when there is no driver or no such device.
///
/// index: as LibTorch counts devices, which CUDA_VISIBLE_DEVICES decides.
TUTTI_INLINE std::string cuda_device_name(int index) {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return {};
  }
  // All of these return 0 when they succeed.
  auto* init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  auto* get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  auto* name = reinterpret_cast<int (*)(char*, int, int)>(::dlsym(driver, "cuDeviceGetName"));
  char text[256] = "";
  int device = 0;
  const bool known = init != nullptr && get != nullptr && name != nullptr && init(0) == 0 &&
                     get(&device, index) == 0 && name(text, sizeof text, device) == 0;
  return known ? text : "";  // the driver stays loaded: LibTorch uses it as well
}

}  // namespace tutti::detail

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
