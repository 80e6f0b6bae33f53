// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/stateful.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/sharded.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/fused_step.hpp>
#include <tutti/optim/shards.hpp>
#include <tutti/train/detail/optimizer_parts.hpp>
#include <tutti/train/sharded_parts.hpp>
#include <tutti/train/sharding.hpp>

/// Lets a Trainer anywhere in the program join several processes and shard its model over them.
namespace tutti::train {

/// Shards the run's model, and gives its optimizers the shards in the same groups, with the same
/// options and their rows of the state that they have. A collective.
/// Throws c10::Error on every rank when the model cannot be sharded, or an optimizer is not known.
std::unique_ptr<dist::Sharding> shard_run(const dist::ShardingOptions& options, State& state);

/// What optimizers of whole tensors ask of a sharded model, which outlives their steps; shard_run()
/// gives it to them. In a loop of one's own: `optimizer->take_shards(optimizer_shards(*sharding))`.
std::shared_ptr<const optim::Shards> optimizer_shards(const dist::Sharding& sharding);

/// Saves an optimizer of a sharded run as if it were not sharded: whole states, the model's names
/// and shapes. A collective.
void save_whole_optimizer(const torch::optim::Optimizer& optimizer, const State& state,
                          Archive& archive);

/// The same with this rank's parts of the states, which `parts` then lists by their path; no
/// collective. Of several copies of the model the first has parts, the others list none.
void save_optimizer_parts(const torch::optim::Optimizer& optimizer, const State& state,
                          Archive& archive, checkpoint::PartPlaces& parts);

/// Gives an optimizer of a sharded run the state of each parameter that save_optimizer_parts() has
/// saved, on any number of ranks, with this rank's rows in it. Hyperparameters stay. Throws
/// c10::Error when it does not fit.
void load_optimizer_parts(torch::optim::Optimizer& optimizer, const State& state,
                          const Archive& archive);

#if TUTTI_BODIES  // else the separate source does it
inline const bool sharding_is_supported = [] {
  sharding_support() = {.shard = &shard_run,
                        .save = &save_whole_optimizer,
                        .save_parts = &save_optimizer_parts,
                        .load_parts = &load_optimizer_parts};
  return true;
}();
#endif

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/sharded.inl.hpp>
#endif
