// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/sharded_parts.hpp>

namespace tutti::train {

TUTTI_INLINE std::vector<checkpoint::PartPlace> places_of_rows(const dist::SpreadModel& model,
                                                               const dist::SpreadParameter& one,
                                                               std::int64_t first,
                                                               std::int64_t rows) {
  std::vector<checkpoint::PartPlace> out;
  const auto dim = static_cast<std::size_t>(one.dim);
  for (const dist::SpreadModel::Run& run : model.runs(one)) {
    std::vector<std::int64_t> offsets(one.sizes.size(), 0);
    checkpoint::TensorBox own = checkpoint::whole_box(one.sizes);
    if (dim == 0) {  // what of the run is in these rows
      const std::int64_t begin = std::max(run.begin, first);
      own.offsets[0] = begin - first;
      own.sizes[0] = std::min(run.begin + run.size, first + rows) - begin;
      offsets[0] = run.in_whole + begin - run.begin;
    } else {
      own.sizes[0] = rows;
      own.offsets[dim] = run.begin;
      own.sizes[dim] = run.size;
      offsets[0] = first;
      offsets[dim] = run.in_whole;
    }
    if (own.sizes[0] > 0) {
      out.push_back({.offsets = std::move(offsets), .shape = one.sizes, .own = std::move(own)});
    }
  }
  return out;
}

TUTTI_INLINE PartWriter::PartWriter(const State& state)
    : spread_(state.spread),
      writes_(dist::data_rank(state) <
              (state.sharding != nullptr ? state.sharding->shard_group().size() : 1)) {}

TUTTI_INLINE at::Tensor PartWriter::note(const at::Tensor& parameter, std::int64_t first,
                                         const at::Tensor& part, const std::string& path,
                                         checkpoint::PartPlaces& parts) const {
  const auto dims = static_cast<std::size_t>(parameter.dim());
  if (!writes_ || (dims == 0 && part.numel() == 0) ||
      (spread_ != nullptr && !spread_->is_first_with(parameter))) {
    return part;
  }
  if (const auto* const one = spread_ != nullptr ? spread_->find(parameter) : nullptr) {
    parts[path] = places_of_rows(*spread_, *one, first, part.size(0));
    return part;
  }
  std::vector<std::int64_t> offsets(dims, 0);
  if (dims == 0) {
    parts[path] = {checkpoint::PartPlace{}};
    return part.reshape({});
  }
  offsets[0] = first;
  parts[path] = {{.offsets = std::move(offsets), .shape = parameter.sizes().vec()}};
  return part;
}

TUTTI_INLINE void save_model_parts(const State& state, Archive& archive,
                                   checkpoint::PartPlaces& parts) {
  if (state.sharding == nullptr && state.spread == nullptr) {
    checkpoint::save_module(*state.model, archive);
    return;
  }
  const PartWriter writer(state);
  std::unordered_map<const void*, const dist::ShardedParameter*> sharded;
  if (state.sharding != nullptr) {
    for (const dist::ShardedParameter& one : state.sharding->parameters()) {
      sharded[one.whole.unsafeGetTensorImpl()] = &one;
    }
  }
  for (const auto& [name, tensor] : checkpoint::module_tensors(*state.model)) {
    const auto found = sharded.find(tensor.unsafeGetTensorImpl());
    const auto* const spread = state.spread != nullptr ? state.spread->find(tensor) : nullptr;
    at::Tensor part = tensor.detach();
    if (spread != nullptr && state.spread->summoned()) {
      part = state.spread->part_of(*spread, part);
    }
    if (found == sharded.end()) {
      archive.put(name,
                  spread == nullptr ? part : writer.note(tensor, 0, part, "model/" + name, parts));
      continue;
    }
    const dist::ShardedParameter& one = *found->second;
    if (!state.sharding->keeps_whole() || one.shard.numel() == 0) {
      part = one.shard.detach();
    } else {  // averages may be in the shard's place
      part = one.whole.dim() == 0 ? part.view({1}) : part.narrow(0, one.first, one.shard.size(0));
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
