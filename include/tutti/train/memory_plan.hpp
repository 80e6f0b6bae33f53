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
/// trainer: a Trainer of one process, or of several with ShardStage::none; its model is read, and,
/// when it has taken a step, what its optimizers have as state. Before, options.optimizer_bytes
/// counts. world_size >= 1.
/// Returns plans of none, optimizer, gradients and parameters, in this order; dist::to_table()
/// prints them. Throws c10::ValueError as dist::memory_plan(), and when the model is sharded: a
/// Trainer of several processes with another stage shards it when it is made.
template <detail::KeepsState Trainer>
[[nodiscard]] std::vector<dist::MemoryPlan> memory_plan(const Trainer& trainer, int world_size = 1,
                                                        dist::MemoryPlanOptions options = {}) {
  return detail::memory_plans(trainer.state(), world_size, std::move(options));
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/train/memory_plan.inl.hpp>
#endif
