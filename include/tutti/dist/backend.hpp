// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/data_parallel.hpp>
#include <tutti/fwd.hpp>

namespace tutti::dist {

/// How runs of several processes are started. c10d makes the compilation of a trainer a fifth
/// longer, so <tutti/trainer.hpp> does not include it: a program that includes <tutti/dist/ddp.hpp>
/// (or <tutti/tutti.hpp>) anywhere brings c10d in, one that does not trains in one process.
struct Backend {
  std::shared_ptr<Communicator> (*initialize)(at::DeviceType device,
                                              std::chrono::milliseconds timeout) = nullptr;
  std::unique_ptr<DataParallel> (*wrap)(const torch::nn::Module& module,
                                        std::shared_ptr<Communicator> group,
                                        const DataParallelOptions& options) = nullptr;
};

/// The program's backend; without functions when it has none.
inline Backend& backend() {
  static Backend instance;
  return instance;
}

/// Joins the run's other processes, as the environment tells; alone, nothing is needed.
///
/// timeout: how long a collective waits for the other ranks.
/// Throws c10::Error when there are several processes but the program has no backend.
inline std::shared_ptr<Communicator> join(const Environment& here, at::DeviceType device,
                                          std::chrono::milliseconds timeout) {
  if (is_initialized()) {
    return default_group();
  }
  if (here.world_size == 1) {
    return ::tutti::detail::make<SingleProcess>();
  }
  TUTTI_CHECK(backend().initialize != nullptr, "this process is ", here.describe(),
              ", but the program cannot join the others; add #include <tutti/dist/ddp.hpp> to the "
              "file that makes the Trainer");
  return backend().initialize(device, timeout);
}

}  // namespace tutti::dist
