// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/sharded.hpp>

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

class ShardsOfModel final : public optim::Shards {
 public:
  explicit ShardsOfModel(const dist::Sharding& sharding) : group_(sharding.shard_group()) {
    for (const dist::ShardedParameter& one : sharding.parameters()) {
      sizes_.emplace(one.shard.unsafeGetTensorImpl(), one);
    }
  }
  [[nodiscard]] int ranks() const override { return group_.size(); }
  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] at::IntArrayRef whole_sizes(const at::Tensor& shard) const override {
    const auto found = sizes_.find(shard.unsafeGetTensorImpl());
    TUTTI_CHECK(found != sizes_.end(), "sharding: the optimizer has a tensor ", shard.sizes(),
                " that is no parameter of the model, and looks at whole tensors, of which ranks "
                "have parts; register it in the model, or take an elementwise optimizer for it");
    return found->second.whole.sizes();
  }
  void sum(const at::Tensor& values) const override {
    const dist::CallPurpose optimizer("the optimizer");
    group_.all_reduce(values);
  }
  [[nodiscard]] at::Tensor exchange(const at::Tensor& parts) const override {
    const at::Tensor out = parts.new_empty(parts.sizes());
    const dist::CallPurpose optimizer("the optimizer");
    group_.all_to_all_into(out, parts);
    return out;
  }

 private:
  dist::Communicator& group_;
  std::unordered_map<const void*, dist::ShardedParameter> sizes_;
};

// What an optimizer saves of each parameter has to be known, to be cut and put together.
TUTTI_INLINE void check_known(const torch::optim::Optimizer& optimizer) {
  const auto* const fused = dynamic_cast<const optim::FusedStepOptimizer*>(&optimizer);
  const bool is_ours = fused != nullptr;
  TUTTI_CHECK(
      !is_ours || fused->steps_on_shards(), "sharding: ", optim::class_name(optimizer),
      " looks at whole tensors (norms, means of rows or products of matrices), of which a "
      "rank has a part; take an optimizer that is elementwise, e.g. AdamW or Lion, or write "
      "its steps_on_shards() and take_shards(), as LAMB and Muon have them");
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

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE std::shared_ptr<const optim::Shards> optimizer_shards(const dist::Sharding& sharding) {
  return std::make_shared<detail::ShardsOfModel>(sharding);
}

}  // namespace tutti::train

namespace tutti::train::detail {

// Replaces each tensor of a parameter's state, as checkpoint::save_optimizer() wrote it, by
// `f(tensor, sizes, path)`. sizes: what it has of the whole parameter, whose sizes are given.
template <class F>
void replace_states(Archive& archive, const torch::optim::Optimizer& optimizer,
                    at::IntArrayRef parameter, F&& f) {
  const auto* const fused = dynamic_cast<const optim::FusedStepOptimizer*>(&optimizer);
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& entry : archive.entries()) {
    if (const at::Tensor* const tensor = entry.is_child() ? nullptr : entry.leaf().tensor()) {
      found.emplace_back(entry.name, *tensor);
    }
  }
  for (const auto& [name, tensor] : found) {
    const std::vector<std::int64_t> sizes =
        fused != nullptr ? fused->state_sizes(name, parameter) : parameter.vec();
    archive.erase(name);
    archive.put(name, at::Tensor(f(tensor, at::IntArrayRef(sizes), archive.path() + '/' + name)));
  }
}

// A tensor of such sizes has a row for each one of the parameter, but other ones.
TUTTI_INLINE bool has_rows_of(const dist::ShardedParameter& one, at::IntArrayRef sizes) {
  return sizes != one.whole.sizes() && one.whole.dim() > 0 && !sizes.empty() &&
         sizes[0] == one.whole.size(0);
}

// What a rank keeps of a state that is not shaped as the parameter: its rows of it, or all of it
// where it has any row of the parameter.
TUTTI_INLINE at::Tensor part_of_state(const dist::ShardedParameter& one, const at::Tensor& state) {
  if (state.dim() == 0) {
    return state;
  }
  const std::int64_t rows = one.shard.size(0);
  return has_rows_of(one, state.sizes()) ? state.narrow(0, one.first, rows)
                                         : state.narrow(0, 0, rows > 0 ? state.size(0) : 0);
}

// The whole of such a state with so many rows, of which every rank has some; a collective.
TUTTI_INLINE at::Tensor whole_of_state(const dist::Sharding& sharding, const at::Tensor& part,
                                       at::IntArrayRef sizes) {
  dist::Communicator& group = sharding.shard_group();
  std::vector<std::int64_t> padded = sizes.vec();
  padded[0] = (sizes[0] + group.size() - 1) / group.size();
  const at::Tensor mine = part.new_zeros(padded);
  mine.narrow(0, 0, part.size(0)).copy_(part);
  padded[0] *= group.size();
  const at::Tensor all = part.new_empty(padded);
  group.all_gather_into(all, mine);
  return all.narrow(0, 0, sizes[0]);
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
      replace_states(*own, optimizer, one.whole.sizes(),
                     [&](const at::Tensor& whole, at::IntArrayRef sizes, const std::string&) {
                       return whole.sizes() != sizes       ? whole
                              : sizes == one.whole.sizes() ? sharding.part_of(one, whole)
                                                           : part_of_state(one, whole);
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
  auto* const fused = dynamic_cast<optim::FusedStepOptimizer*>(&optimizer);
  if (fused != nullptr && !fused->elementwise()) {
    const auto shards = optimizer_shards(sharding);
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& one : group.params()) {
        static_cast<void>(shards->whole_sizes(one));  // refuses what is not the model's
      }
    }
    fused->take_shards(shards);
  }
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
// `f(parameter, tensor, sizes, path)` makes of the tensors of their states of which ranks have
// rows. sizes: of the whole tensor.
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
      replace_states(*own, optimizer, one.whole.sizes(),
                     [&](const at::Tensor& part, at::IntArrayRef sizes, const std::string& path) {
                       const bool cut = sizes == one.whole.sizes()
                                            ? part.sizes() == one.shard.sizes()
                                            : has_rows_of(one, sizes);
                       return cut ? f(one, part, sizes, path) : part;
                     });
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
                            at::IntArrayRef sizes, const std::string&) {
                          return sizes == one.whole.sizes()
                                     ? state.sharding->whole_of(one, part)
                                     : detail::whole_of_state(*state.sharding, part, sizes);
                        });
}

TUTTI_INLINE void save_optimizer_parts(const torch::optim::Optimizer& optimizer, const State& state,
                                       Archive& archive, checkpoint::PartPlaces& parts) {
  const PartWriter writer(state);
  detail::save_as_whole(optimizer, state, archive,
                        [&](const dist::ShardedParameter& one, const at::Tensor& part,
                            at::IntArrayRef sizes, const std::string& path) {
                          const at::Tensor kept = writer.note(one, part, path, parts);
                          if (sizes != one.whole.sizes() && parts.contains(path)) {
                            parts[path].front().shape = sizes.vec();  // a spread one has none
                          }
                          return kept;
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
    if (Archive* const saved = parameters[i] != nullptr ? detail::state_in(own, i) : nullptr) {
      const dist::ShardedParameter& one = *parameters[i];
      detail::replace_states(
          *saved, optimizer, one.whole.sizes(),
          [&](const at::Tensor& tensor, at::IntArrayRef sizes, const std::string&) {
            return sizes != one.whole.sizes() && tensor.sizes() == sizes
                       ? detail::part_of_state(one, tensor)
                       : tensor;
          });
    }
  }
  checkpoint::load_optimizer(optimizer, own);
}

}  // namespace tutti::train
