// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/sharding.hpp>

/// What a rank of a sharded run gives to a sharded checkpoint.
namespace tutti::train {

/// Says where the parts of sharded parameters belong. Of several copies of the model the ranks of
/// the first one write.
class PartWriter {
 public:
  explicit PartWriter(const State& state);

  /// Lists, if this rank is to write it, the rows of a tensor that is shaped as a parameter under
  /// `path`. part: shaped as the parameter's shard. Returns what a tree is to hold of it.
  [[nodiscard]] at::Tensor note(const dist::ShardedParameter& parameter, const at::Tensor& part,
                                const std::string& path, checkpoint::PartPlaces& parts) const;

 private:
  bool writes_;
};

/// Puts this rank's rows of the model's parameters into the archive, and on rank 0 all other
/// tensors of the model; as checkpoint::save_module() where the run is not sharded. The paths in
/// `parts` begin with "model/".
void save_model_parts(const State& state, Archive& archive, checkpoint::PartPlaces& parts);

/// Replaces this rank's parts of parameters, which `archive`, of the run's state, has under their
/// names, by what they are parts of; a collective. parts: set, they stay, and this lists them.
void save_policy_parts(const State& state, Archive& archive, checkpoint::PartPlaces* parts);

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

TUTTI_INLINE PartWriter::PartWriter(const State& state)
    : writes_(state.rank < state.sharding->shard_group().size()) {}

TUTTI_INLINE at::Tensor PartWriter::note(const dist::ShardedParameter& parameter,
                                         const at::Tensor& part, const std::string& path,
                                         checkpoint::PartPlaces& parts) const {
  const auto dims = static_cast<std::size_t>(parameter.whole.dim());
  if (!writes_ || (dims == 0 && part.numel() == 0)) {
    return part;
  }
  std::vector<std::int64_t> offsets(dims, 0);
  if (dims == 0) {
    parts[path] = {};
    return part.reshape({});
  }
  offsets[0] = parameter.first;
  parts[path] = {.offsets = offsets, .shape = parameter.whole.sizes().vec()};
  return part;
}

TUTTI_INLINE void save_model_parts(const State& state, Archive& archive,
                                   checkpoint::PartPlaces& parts) {
  if (state.sharding == nullptr) {
    checkpoint::save_module(*state.model, archive);
    return;
  }
  const PartWriter writer(state);
  std::unordered_map<const void*, const dist::ShardedParameter*> sharded;
  for (const dist::ShardedParameter& one : state.sharding->parameters()) {
    sharded[one.whole.unsafeGetTensorImpl()] = &one;
  }
  for (const auto& [name, tensor] : checkpoint::module_tensors(*state.model)) {
    const auto found = sharded.find(tensor.unsafeGetTensorImpl());
    if (found == sharded.end()) {
      archive.put(name, tensor.detach());
      continue;
    }
    const dist::ShardedParameter& one = *found->second;
    at::Tensor part = one.shard.detach();
    if (state.sharding->keeps_whole() && part.numel() > 0) {  // where averages may be in its place
      part = one.whole.dim() == 0 ? one.whole.detach().view({1})
                                  : one.whole.detach().narrow(0, one.first, part.size(0));
    }
    archive.put(name, writer.note(one, part, "model/" + name, parts));
  }
}

TUTTI_INLINE void save_policy_parts(const State& state, Archive& archive,
                                    checkpoint::PartPlaces* parts) {
  const PartWriter writer(state);
  for (const dist::ShardedParameter& one : state.sharding->parameters()) {
    if (archive.contains(one.name)) {
      const at::Tensor part = archive.tensor(one.name);
      archive.erase(one.name);
      const std::string path = "state/" + archive.path() + '/' + one.name;
      archive.put(one.name, parts != nullptr ? writer.note(one, part, path, *parts)
                                             : state.sharding->whole_of(one, part));
    }
  }
}

}  // namespace tutti::train

#endif
