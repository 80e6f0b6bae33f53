// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
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
#include <tutti/dist/sharded.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/sweep.hpp>
#include <tutti/train/sharding.hpp>

/// Lets a Trainer anywhere in the program join several processes and shard its model over them.
namespace tutti::train {

/// Shards the run's model, and gives its optimizers the shards in the same groups, with the same
/// options and their rows of the state that they have. A collective.
/// Throws c10::Error on every rank when the model cannot be sharded, or an optimizer is not known.
std::unique_ptr<dist::Sharding> shard_run(const dist::ShardingOptions& options, State& state);

/// Saves an optimizer of a sharded run as if it were not sharded: whole states, the model's names
/// and shapes. A collective.
void save_whole_optimizer(const torch::optim::Optimizer& optimizer, const State& state,
                          Archive& archive);

#if TUTTI_BODIES  // else the separate source does it
inline const bool sharding_is_supported = [] {
  sharding_support() = {.shard = &shard_run, .save = &save_whole_optimizer};
  return true;
}();
#endif

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train::detail {

// The optimizer's parameters in the order of its groups, and what they are of the model: null for
// those that are not its.
TUTTI_INLINE std::vector<const dist::ShardedParameter*> sharded_parameters(
    const torch::optim::Optimizer& optimizer, const dist::Sharding& sharding) {
  std::vector<const dist::ShardedParameter*> out;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& one : group.params()) {
      const auto& all = sharding.parameters();
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& candidate) {
        return candidate.shard.is_same(one) || candidate.whole.is_same(one);
      });
      out.push_back(found == all.end() ? nullptr : &*found);
    }
  }
  return out;
}

// The state of parameter i in what checkpoint::save_optimizer() has written; null: it has none.
TUTTI_INLINE Archive* state_in(Archive& archive, std::size_t i) {
  for (const std::string& path : {"own/param" + std::to_string(i), "state/" + std::to_string(i)}) {
    if (archive.contains(path)) {
      return &archive.child(path);
    }
  }
  return nullptr;
}

// Replaces every tensor in `archive` that is as large as `like` by what `f` makes of it.
template <class F>
void replace_tensors(Archive& archive, at::IntArrayRef like, F&& f) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& entry : archive.entries()) {
    const at::Tensor* const tensor = entry.is_child() ? nullptr : entry.leaf().tensor();
    if (tensor != nullptr && tensor->sizes() == like) {
      found.emplace_back(entry.name, *tensor);
    }
  }
  for (const auto& [name, tensor] : found) {
    archive.erase(name);
    archive.put(name, at::Tensor(f(tensor)));
  }
}

TUTTI_INLINE void put_anew(Archive& archive, const char* name,
                           const std::vector<std::string>& values) {
  archive.erase(name);
  archive.put(name, values);
}

// What an optimizer saves of each parameter has to be known, to be cut and put together.
TUTTI_INLINE void check_known(const torch::optim::Optimizer& optimizer) {
  const auto* const sweeping = dynamic_cast<const optim::Sweeping*>(&optimizer);
  const bool is_ours = sweeping != nullptr;
  TUTTI_CHECK(!is_ours || sweeping->elementwise(), "sharding: ", optim::class_name(optimizer),
              " looks at whole tensors (norms, means of rows or products of matrices), of which a "
              "rank has a part; take an optimizer that is elementwise, e.g. AdamW or Lion");
  const bool has_own_way = dynamic_cast<const Stateful*>(&optimizer) != nullptr;
  TUTTI_CHECK(is_ours || !has_own_way, "sharding: the optimizer ", optim::class_name(optimizer),
              " is not one whose state can be cut into parts; take one of tutti, or SGD, Adam, "
              "AdamW, RMSprop or Adagrad of torch::optim");
  TUTTI_CHECK(dynamic_cast<const optim::KeepsAverages*>(&optimizer) == nullptr,
              "sharding: ", optim::class_name(optimizer),
              " puts averages into the model for evaluations and "
              "checkpoints, of which a rank has a part; take AdamW with a schedule");
  Archive tried;
  checkpoint::save_optimizer(optimizer, tried);
}

// Gives an optimizer the shards of its parameters.
TUTTI_INLINE void take_shards(torch::optim::Optimizer& optimizer, const State& state,
                              const dist::Sharding& sharding) {
  Archive archive;
  checkpoint::save_optimizer(optimizer, archive, state.model.get());
  const auto parameters = sharded_parameters(optimizer, sharding);
  std::vector<std::string> shapes = archive.get<std::vector<std::string>>("shapes");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i] == nullptr) {
      continue;
    }
    const dist::ShardedParameter& one = *parameters[i];
    shapes[i] = c10::str(one.shard.sizes());
    if (Archive* const own = state_in(archive, i)) {
      replace_tensors(*own, one.whole.sizes(),
                      [&](const at::Tensor& whole) { return sharding.part_of(one, whole); });
    }
  }
  put_anew(archive, "shapes", shapes);
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& one : group.params()) {
      one = sharding.shard_of(one);
    }
  }
  optimizer.state().clear();
  checkpoint::load_optimizer(optimizer, archive);
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE std::unique_ptr<dist::Sharding> shard_run(const dist::ShardingOptions& options,
                                                       State& state) {
  for (const auto& optimizer : state.optimizers) {
    detail::check_known(*optimizer);
  }
  auto sharding = dist::shard(*state.model, state.communicator, options);
  for (const auto& optimizer : state.optimizers) {
    detail::take_shards(*optimizer, state, *sharding);
  }
  return sharding;
}

TUTTI_INLINE void save_whole_optimizer(const torch::optim::Optimizer& optimizer, const State& state,
                                       Archive& archive) {
  checkpoint::save_optimizer(optimizer, archive, state.model.get());
  const dist::Sharding& sharding = *state.sharding;
  const auto parameters = detail::sharded_parameters(optimizer, sharding);
  auto names = archive.get<std::vector<std::string>>("parameters");
  auto shapes = archive.get<std::vector<std::string>>("shapes");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i] == nullptr) {
      continue;
    }
    const dist::ShardedParameter& one = *parameters[i];
    names[i] = one.name;
    shapes[i] = c10::str(one.whole.sizes());
    if (Archive* const own = detail::state_in(archive, i)) {
      detail::replace_tensors(*own, one.shard.sizes(),
                              [&](const at::Tensor& part) { return sharding.whole_of(one, part); });
    }
  }
  detail::put_anew(archive, "parameters", names);
  detail::put_anew(archive, "shapes", shapes);
}

}  // namespace tutti::train

#endif
