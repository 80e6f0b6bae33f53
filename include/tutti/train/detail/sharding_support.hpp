// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/fwd.hpp>

namespace tutti::train {

/// A run of so many ranks is sharded.
inline bool is_sharded(const dist::ShardingOptions& options, int world_size) {
  return options.stage != dist::ShardStage::none && world_size > 1;
}

/// How many ranks share one copy of the model; 0: the run is not sharded.
inline int shards_of(const dist::ShardingOptions& options, int world_size) {
  return !is_sharded(options, world_size) ? 0
         : options.shard_degree > 0       ? options.shard_degree
                                          : world_size;
}

/// How a run is sharded. A program that includes <tutti/train/sharded.hpp> (or <tutti/tutti.hpp>)
/// anywhere can; others do not compile it.
struct ShardingSupport {
  /// Shards the run's model, and gives its optimizers the shards with the state that they have.
  std::unique_ptr<dist::Sharding> (*shard)(const dist::ShardingOptions& options,
                                           State& state) = nullptr;
  /// As checkpoint::save_optimizer() of the optimizer that is not sharded; a collective.
  void (*save)(const torch::optim::Optimizer& optimizer, const State& state,
               Archive& archive) = nullptr;
  /// The same with this rank's parts in place of whole tensors, which `parts` then lists; no
  /// collective.
  void (*save_parts)(const torch::optim::Optimizer& optimizer, const State& state, Archive& archive,
                     checkpoint::PartPlaces& parts) = nullptr;
  /// Gives an optimizer that has been sharded the state of its parameters out of such an archive,
  /// with the parts of this rank.
  void (*load_parts)(torch::optim::Optimizer& optimizer, const State& state,
                     const Archive& archive) = nullptr;
};

/// The program's; without functions when it has none.
inline ShardingSupport& sharding_support() {
  static ShardingSupport instance;
  return instance;
}

}  // namespace tutti::train
