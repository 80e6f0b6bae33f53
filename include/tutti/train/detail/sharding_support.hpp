// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include <tutti/core/archive.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/fwd.hpp>

namespace tutti::train {

/// How a run is sharded. A program that includes <tutti/train/sharded.hpp> (or <tutti/tutti.hpp>)
/// anywhere can; others do not compile it.
struct ShardingSupport {
  /// Shards the run's model, and gives its optimizers the shards with the state that they have.
  std::unique_ptr<dist::Sharding> (*shard)(const dist::ShardingOptions& options,
                                           State& state) = nullptr;
  /// As checkpoint::save_optimizer() of the optimizer that is not sharded; a collective.
  void (*save)(const torch::optim::Optimizer& optimizer, const State& state,
               Archive& archive) = nullptr;
};

/// The program's; without functions when it has none.
inline ShardingSupport& sharding_support() {
  static ShardingSupport instance;
  return instance;
}

}  // namespace tutti::train
