// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/memory_plan.hpp>

/// The memory of a trainer's model in a run of more ranks.

namespace tutti {

namespace detail {

template <class T>
concept KeepsState = requires(const T& trainer) {
  { trainer.state() } -> std::same_as<const State&>;
};

std::vector<dist::MemoryPlan> memory_plans(const State& state, int world_size,
                                           dist::MemoryPlanOptions options);

}  // namespace detail

/// What each rank would have in memory when this trainer's model trained on `world_size` ranks: a
/// plan for each ShardStage, and, when options.sharding.shard_degree says so, of copies.
///
/// trainer: a Trainer; its model is read, and, when it is not sharded and has taken a step, what
/// its optimizers have as state. Otherwise options.optimizer_bytes counts. world_size >= 1.
/// Returns plans of none, optimizer, gradients and parameters, in this order; dist::to_table()
/// prints them. Throws c10::ValueError as dist::memory_plan(), and when the model is sharded
/// already: plan ahead of fit().
template <detail::KeepsState Trainer>
[[nodiscard]] std::vector<dist::MemoryPlan> memory_plan(const Trainer& trainer, int world_size = 1,
                                                        dist::MemoryPlanOptions options = {}) {
  return detail::memory_plans(trainer.state(), world_size, std::move(options));
}

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::detail {

// Bytes of the tensors with elements; counters of steps do not grow with the model.
TUTTI_INLINE std::int64_t tensor_bytes(const Archive& archive) {
  std::int64_t bytes = 0;
  archive.each_leaf([&](const std::string&, const ArchiveLeaf& leaf) {
    const at::Tensor* const tensor = leaf.tensor();
    bytes +=
        tensor != nullptr && tensor->dim() > 0 ? static_cast<std::int64_t>(tensor->nbytes()) : 0;
  });
  return bytes;
}

TUTTI_INLINE std::vector<dist::MemoryPlan> memory_plans(const State& state, int world_size,
                                                        dist::MemoryPlanOptions options) {
  TUTTI_CHECK_VALUE(state.sharding == nullptr,
                    "memory_plan: the model is sharded already, so that its sizes on one rank are "
                    "not those of the whole; plan ahead of fit()");
  std::int64_t bytes = 0;
  std::int64_t elements = 0;
  for (const auto& optimizer : state.optimizers) {
    Archive archive;
    checkpoint::save_optimizer(*optimizer, archive);
    bytes += tensor_bytes(archive);
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        elements += parameter.numel();
      }
    }
  }
  if (bytes > 0 && elements > 0) {
    options.optimizer_bytes = static_cast<double>(bytes) / static_cast<double>(elements);
  }
  options.world_size = world_size;
  std::vector<dist::MemoryPlan> plans;
  for (const dist::ShardStage stage : {dist::ShardStage::none, dist::ShardStage::optimizer,
                                       dist::ShardStage::gradients, dist::ShardStage::parameters}) {
    options.sharding.stage = stage;
    plans.push_back(dist::memory_plan(*state.model, options));
  }
  return plans;
}

}  // namespace tutti::detail

#endif
