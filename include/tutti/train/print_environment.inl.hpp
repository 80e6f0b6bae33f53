// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/print_environment.hpp>

#include <cstdlib>
#include <fstream>
#include <string_view>

#include <sys/utsname.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <tutti/version.hpp>

namespace tutti::detail {

// What stands behind `key` and a colon in a file of /proc.
TUTTI_INLINE std::string from_proc(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) {
      const auto colon = line.find(':');
      const auto begin = line.find_first_not_of(" \t", colon + 1);
      if (colon != std::string::npos && begin != std::string::npos) {
        return line.substr(begin);
      }
    }
  }
  return "unknown";
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE std::string environment_report() {
  std::string out;
  const auto say = [&](std::string_view what, const std::string& value) {
    out.append(what).append(what.size() < 18 ? 18 - what.size() : 0, ' ');
    out.append(" ").append(value).append("\n");
  };
  say("tutti", TUTTI_VERSION);
  say("LibTorch", TORCH_VERSION);
#if defined(__clang__)
  say("compiler", std::string("Clang ") + __clang_version__);
#else
  say("compiler", std::string("GCC ") + __VERSION__);
#endif
#if defined(NDEBUG)
  say("assertions", "off");
#else
  say("assertions", "on");
#endif
  struct utsname system{};
  if (::uname(&system) == 0) {
    say("system", std::string(system.sysname) + " " + system.release + " " + system.machine);
  }
  say("processor", detail::from_proc("/proc/cpuinfo", "model name"));
  say("processors", std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)));
  say("instructions", at::get_cpu_capability());
  say("memory", detail::from_proc("/proc/meminfo", "MemTotal") + ", available " +
                    detail::from_proc("/proc/meminfo", "MemAvailable"));
  say("threads", std::to_string(at::get_num_threads()) + " within operators, " +
                     std::to_string(at::get_num_interop_threads()) + " between them");
  const auto devices = static_cast<int>(torch::cuda::device_count());
  say("GPUs", std::to_string(devices));
  if (at::hasCUDA()) {
    const auto& hooks = at::detail::getCUDAHooks();
    say("CUDA", std::to_string(hooks.versionCUDART()));
    say("cuDNN", hooks.hasCuDNN() ? std::to_string(hooks.versionCuDNN()) : "none");
  }
  const auto on = [](bool yes) { return std::string(yes ? "on" : "off"); };
  say("deterministic",
      on(at::globalContext().deterministicAlgorithms()) +
          (at::globalContext().deterministicAlgorithmsWarnOnly() ? ", warns" : ""));
  say("cudnn benchmark", on(at::globalContext().benchmarkCuDNN()));
  for (const char* const variable :
       {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK",
        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG",
        "PYTORCH_CUDA_ALLOC_CONF", "NCCL_DEBUG", "LD_PRELOAD"}) {
    if (const char* const value = std::getenv(variable); value != nullptr) {
      say(variable, value);
    }
  }
  return out;
}

TUTTI_INLINE void print_environment(std::FILE* stream) {
  const std::string report = environment_report();
  std::fwrite(report.data(), 1, report.size(), stream);
}

}  // namespace tutti
