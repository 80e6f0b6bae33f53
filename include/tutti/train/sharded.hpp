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
#include <tutti/dist/spread_model.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/fused_step.hpp>
#include <tutti/train/detail/optimizer_parts.hpp>
#include <tutti/train/sharded_parts.hpp>
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

// What an optimizer saves of each parameter has to be known, to be cut and put together.
TUTTI_INLINE void check_known(const torch::optim::Optimizer& optimizer) {
  const auto* const fused = dynamic_cast<const optim::FusedStepOptimizer*>(&optimizer);
  const bool is_ours = fused != nullptr;
  TUTTI_CHECK(!is_ours || fused->elementwise(), "sharding: ", optim::class_name(optimizer),
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
      replace_tensors(*own, one.whole.sizes(), [&](const at::Tensor& whole, const std::string&) {
        return sharding.part_of(one, whole);
      });
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
  auto sharding = dist::shard(*state.model, dist::data_group(state), options);
  for (const auto& optimizer : state.optimizers) {
    detail::take_shards(*optimizer, state, *sharding);
  }
  return sharding;
}

}  // namespace tutti::train

namespace tutti::train::detail {

// Saves an optimizer under the names and shapes of the whole parameters, with what
// `f(parameter, tensor, path)` makes of the tensors of their states.
template <class F>
void save_as_whole(const torch::optim::Optimizer& optimizer, const State& state, Archive& archive,
                   F&& f) {
  checkpoint::save_optimizer(optimizer, archive, state.model.get());
  const auto parameters = sharded_parameters(optimizer, *state.sharding);
  auto names = archive.get<std::vector<std::string>>("parameters");
  auto shapes = archive.get<std::vector<std::string>>("shapes");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i] == nullptr) {
      continue;
    }
    const dist::ShardedParameter& one = *parameters[i];
    names[i] = one.name;
    shapes[i] = c10::str(one.whole.sizes());
    if (Archive* const own = state_in(archive, i)) {
      replace_tensors(
          *own, one.shard.sizes(),
          [&](const at::Tensor& part, const std::string& path) { return f(one, part, path); });
    }
  }
  put_anew(archive, "parameters", names);
  put_anew(archive, "shapes", shapes);
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE void save_whole_optimizer(const torch::optim::Optimizer& optimizer, const State& state,
                                       Archive& archive) {
  detail::save_as_whole(optimizer, state, archive,
                        [&](const dist::ShardedParameter& one, const at::Tensor& part,
                            const std::string&) { return state.sharding->whole_of(one, part); });
}

TUTTI_INLINE void save_optimizer_parts(const torch::optim::Optimizer& optimizer, const State& state,
                                       Archive& archive, checkpoint::PartPlaces& parts) {
  const PartWriter writer(state);
  detail::save_as_whole(
      optimizer, state, archive,
      [&](const dist::ShardedParameter& one, const at::Tensor& part, const std::string& path) {
        return writer.note(one, part, path, parts);
      });
}

TUTTI_INLINE void load_optimizer_parts(torch::optim::Optimizer& optimizer, const State& state,
                                       const Archive& archive) {
  Archive own;
  checkpoint::save_optimizer(optimizer, own, state.model.get());
  const auto parameters = detail::sharded_parameters(optimizer, *state.sharding);
  auto names = own.get<std::vector<std::string>>("parameters");
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = parameters[i] != nullptr ? parameters[i]->name : names[i];
  }
  const auto places = checkpoint::detail::match_parameters(
      names, archive.get<std::vector<std::string>>("parameters"), optim::class_name(optimizer));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto from = detail::paths_of_state(places[i]);
    const auto to = detail::paths_of_state(i);
    for (std::size_t kind = 0; kind < to.size(); ++kind) {
      own.erase(to[kind]);
      if (archive.contains(from[kind])) {
        own.put(to[kind], archive.child(from[kind]));
      }
    }
  }
  checkpoint::load_optimizer(optimizer, own);
}

}  // namespace tutti::train

#endif
