// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include <ATen/Context.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti {

/// Seeds LibTorch's generators of the CPU and of every CUDA device.
///
/// A model built before the Trainer exists takes its first weights from them: call this before
/// building it as well as setting TrainerOptions::seed.
inline void seed_all(std::uint64_t seed) {
  at::manual_seed(seed);
}

/// Makes LibTorch choose deterministic kernels and refuse operators that have none: these throw
/// c10::Error with their name. Slower, as a warning says.
///
/// warn_only: operators that have none run as they are, with a warning.
/// Call it before the first CUDA operation: cuBLAS reads its workspace setting only then. A setting
/// in CUBLAS_WORKSPACE_CONFIG that is not deterministic is replaced, with a warning.
/// Source: MosaicML Composer, `composer.utils.reproducibility.configure_deterministic_mode`.
inline void configure_deterministic_mode(bool warn_only = false) {
  constexpr const char* name = "CUBLAS_WORKSPACE_CONFIG";
  const char* set = std::getenv(name);
  const std::string before = set == nullptr ? "" : set;
  if (before != ":4096:8" && before != ":16:8") {
    ::setenv(name, ":4096:8", /*overwrite=*/1);
    if (!before.empty()) {
      TORCH_WARN(name, " was ", before,
                 ", expected :4096:8 or :16:8, the deterministic ones; it "
                 "is :4096:8 now");
    }
  }
  at::globalContext().setDeterministicAlgorithms(true, warn_only);
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  TORCH_WARN("deterministic mode is on: training is slower, and operators that cannot be ",
             "deterministic are ", warn_only ? "warned of" : "refused");
}

namespace train {

/// The run's seed: the given one, else a random one that rank 0 chose.
/// Throws c10::Error when the given one is not below 2^32.
inline std::uint64_t agree_on_seed(std::optional<std::uint64_t> given,
                                   dist::Communicator& communicator) {
  if (given) {
    TUTTI_CHECK_VALUE(*given <= std::numeric_limits<std::uint32_t>::max(), "seed is ", *given,
                      ", expected 0 to 4294967295");
    return *given;
  }
  return std::stoull(communicator.broadcast_bytes(std::to_string(std::random_device{}())));
}

}  // namespace train
}  // namespace tutti
