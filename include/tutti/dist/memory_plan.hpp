// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/detail/flat_parameter.hpp>
#include <tutti/dist/detail/sharding_options.hpp>
#include <tutti/dist/detail/unit_parameters.hpp>
#include <tutti/dist/sharding.hpp>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

/// The memory of a rank and the bytes that it sends, computed before a run of any size.

namespace tutti::dist {

/// The run that is planned.
struct MemoryPlanOptions {
  int world_size = 1;          ///< ranks of the run
  int rank = 0;                ///< of which rank; the first ones have the most
  ShardingOptions sharding{};  ///< ShardStage::none: DistributedDataParallel

  /// Bytes of the optimizer's state for each element that trains: 8 for Adam and its like in
  /// float, 4 for SGD with momentum, 0 for SGD.
  double optimizer_bytes = 8;

  /// The option of DistributedDataParallel; without it buckets hold each gradient once more.
  bool gradient_as_bucket_view = false;

  /// Where ranks compute; without it, where the module's parameters are. On the CPU Gloo brings a
  /// large parameter to where it belongs, elsewhere all come through messages, as of kMeta.
  std::optional<c10::DeviceType> device{};
};

/// What a rank has in memory, in bytes, and what it sends in a step of one microbatch. Activations
/// and the memory of LibTorch itself, some 300 MB a process, come on top.
struct MemoryPlan {
  int world_size = 1;
  ShardStage stage = ShardStage::none;
  int shard_degree = 1;  ///< ranks that have one copy of the model together

  std::int64_t elements = 0;      ///< of the model's parameters
  std::int64_t shard = 0;         ///< of this rank's part of them
  std::int64_t padding = 0;       ///< elements that all parts together have more in messages
  std::int64_t largest_unit = 0;  ///< elements of the largest nn::Unit
  std::int64_t root = 0;          ///< elements that are in no unit, so that they are always whole

  std::int64_t parameters = 0;  ///< between steps: the whole ones and this rank's part
  std::int64_t gradients = 0;   ///< after the backward pass, with the buckets of
                                ///< DistributedDataParallel
  std::int64_t optimizer = 0;   ///< the optimizer's state
  std::int64_t host = 0;        ///< with cpu_offload: the rank's parts of these three, on the host
  std::int64_t buffers = 0;     ///< such as the running statistics of batch norms
  std::int64_t peak = 0;        ///< the most at one moment of a step, with all of these
  std::int64_t sent = 0;        ///< by rings, as NCCL and Gloo send

  /// The memory between steps, without `host`.
  [[nodiscard]] std::int64_t between_steps() const {
    return parameters + gradients + optimizer + buffers;
  }
};

/// Computes the plan of `module`; nothing of it is read but sizes, types and what are units, so its
/// tensors may be on any device, also on at::kMeta.
///
/// A unit is planned as running once. The gradient of a parameter that others read, too, as that of
/// an embedding with a tied head that ShardingOptions::units names, is there for longer: what it
/// takes is not in `peak`.
///
/// options: world_size >= 1, rank below it, shard_degree a divisor of world_size or 0.
/// Throws c10::ValueError saying which is wrong.
/// Source: Rajbhandari et al., "ZeRO", SC 2020, and what dist/sharded.hpp does at each moment.
[[nodiscard]] MemoryPlan memory_plan(const torch::nn::Module& module,
                                     const MemoryPlanOptions& options);

/// Plans as a table in the terminal: a row each, in megabytes (10^6 bytes).
[[nodiscard]] std::string to_table(const std::vector<MemoryPlan>& plans);

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/memory_plan.inl.hpp>
#endif
