// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/sharded_snapshot.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::optional<OptimizerEntry> optimizer_entry(std::string_view path) {
  const auto take = [&](std::string_view start) {
    const bool there = path.starts_with(start);
    path.remove_prefix(there ? start.size() : 0);
    return there;
  };
  OptimizerEntry out;
  if (!take("optimizers/")) {
    return std::nullopt;
  }
  const auto slash = path.find('/');
  if (slash == std::string_view::npos) {
    return std::nullopt;
  }
  out.optimizer = path.substr(0, slash);
  path.remove_prefix(slash + 1);
  if (!take("own/param") && !take("state/")) {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), out.parameter);
  if (error != std::errc() || end == path.data() + path.size() || *end != '/') {
    return std::nullopt;
  }
  out.key = path.substr(static_cast<std::size_t>(end + 1 - path.data()));
  return out;
}

TUTTI_INLINE const std::string& OptimizerTexts::operator()(const OptimizerEntry& entry) {
  const auto [found, is_new] = known_.try_emplace(entry.optimizer);
  const std::string path = "optimizers/" + entry.optimizer + "/" + list_;
  if (is_new && state_.contains(path)) {
    found->second = state_.get<std::vector<std::string>>(path);
  }
  return entry.parameter < found->second.size() ? found->second[entry.parameter] : none_;
}

// Where a tensor of the state is written.
TUTTI_INLINE std::pair<std::string, std::string> place_in_folders(const std::string& path,
                                                                  OptimizerTexts& names) {
  const auto entry = optimizer_entry(path);
  const std::string name = entry ? names(*entry) : std::string();
  if (name.empty()) {
    return {"state", path};
  }
  std::string key = entry->key;
  for (char& letter : key) {
    letter = letter == '/' ? '.' : letter;
  }
  return {"optim" + (entry->optimizer == "0" ? std::string() : entry->optimizer),
          "state." + name + "." + key};
}

// Numbers of parameters' states, as step: Python's optimizers have them as float scalars. Here they
// are read from the manifest, which has them exactly.
TUTTI_INLINE void add_numbers(const Archive& state, OptimizerTexts& names,
                              std::map<std::string, std::vector<TensorShard>>& folders) {
  state.each_leaf([&](const std::string& path, const ArchiveLeaf& leaf) {
    const auto entry = optimizer_entry(path);
    if (!entry || entry->key.find('/') != std::string::npos || names(*entry).empty()) {
      return;
    }
    const auto place = place_in_folders(path, names);
    leaf.visit([&](const auto& value) {
      using Value = std::decay_t<decltype(value)>;
      if constexpr (std::same_as<Value, std::int64_t> || std::same_as<Value, double>) {
        const at::Tensor number = at::empty({}, at::kFloat).fill_(value);
        folders[place.first].push_back({.name = place.second, .part = number});
      }
    });
  });
}

// What a box has of a tensor; shares its memory.
TUTTI_INLINE at::Tensor narrowed(const at::Tensor& tensor, const TensorBox& box) {
  at::Tensor out = tensor;
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    out = out.narrow(static_cast<std::int64_t>(i), box.offsets[i], box.sizes[i]);
  }
  return out;
}

// A tree with what `f(path, tensor)` makes of its tensors.
template <class F>
void copy_tree(const Archive& from, const std::string& prefix, Archive& to, F&& f) {
  for (const auto& entry : from.entries()) {
    const std::string path = prefix + entry.name;
    if (entry.is_child()) {
      copy_tree(entry.child(), path + '/', to.child(entry.name), f);
    } else if (const at::Tensor* tensor = entry.leaf().tensor()) {
      to.put(entry.name, at::Tensor(f(path, *tensor)));
    } else {
      entry.leaf().visit([&](const auto& leaf) { to.put(entry.name, leaf); });
    }
  }
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE ShardedSnapshot to_sharded(const Snapshot& snapshot, const PartPlaces& parts, int rank,
                                        std::optional<int> stream) {
  ShardedSnapshot out;
  out.meta = snapshot.meta;
  out.stream = stream.value_or(rank);
  const auto add = [&](const std::string& folder, const std::string& name, const std::string& path,
                       const at::Tensor& tensor) {
    const auto part = parts.find(path);
    if (part != parts.end()) {
      for (const PartPlace& place : part->second) {
        out.folders[folder].push_back(
            {.name = name,
             .part = place.own ? detail::narrowed(tensor, *place.own) : tensor,
             .offsets = place.offsets,
             .shape = place.shape});
      }
    } else if (rank == 0) {
      out.folders[folder].push_back({.name = name, .part = tensor});
    }
  };
  for (const auto& [path, tensor] : detail::tensors_of(snapshot.model, true)) {
    add("model", path, "model/" + path, tensor);
  }
  out.state = snapshot.state;
  const std::string own = "rng/" + std::to_string(*out.stream);
  if (out.state.contains(own)) {
    out.own = detail::tensors_of(out.state.child(own), true);
  }
  out.state.erase("rng");
  detail::OptimizerTexts names(snapshot.state, "parameters");
  for (const auto& [path, tensor] : detail::tensors_of(out.state, false)) {
    const auto [folder, name] = detail::place_in_folders(path, names);
    add(folder, name, "state/" + path, tensor);
    out.places[path] = folder + '/' + name;
  }
  if (rank == 0) {
    detail::add_numbers(out.state, names, out.folders);
  }
  return out;
}

TUTTI_INLINE at::Tensor ShardedSource::placeholder(const ShardedFiles& files,
                                                   const std::string& name) {
  const ShardedTensor& tensor = files.tensors().find(name)->second;
  at::Tensor out = at::empty(tensor.shape(), at::TensorOptions(tensor.dtype).device(at::kMeta));
  places_[out.unsafeGetTensorImpl()] = {&files, name, out};
  return out;
}

TUTTI_INLINE Snapshot ShardedSource::snapshot(std::optional<int> rank, bool with_state) {
  Snapshot out;
  out.meta = saved_.manifest().meta;
  if (saved_.has_folder("model")) {
    const ShardedFiles& model = saved_.folder("model");
    for (const auto& item : model.tensors()) {
      out.model.put(item.first, placeholder(model, item.first));
    }
  }
  if (!with_state) {
    return out;
  }
  out.state = saved_.state(
      [&](const ShardedFiles& files, const std::string& name) { return placeholder(files, name); });
  for (int one = 0; saved_.has_own(one); ++one) {
    Archive& streams = out.state.child("rng").child(std::to_string(one));
    for (const auto& [name, tensor] :
         one == rank.value_or(one) ? saved_.own_of(one) : std::vector<NamedTensor>{}) {
      streams.put(name, tensor);
    }
  }
  return out;
}

TUTTI_INLINE const ShardedSource::Place& ShardedSource::place_of(
    const at::Tensor& placeholder) const {
  const auto found = places_.find(placeholder.unsafeGetTensorImpl());
  TUTTI_CHECK(found != places_.end(), "checkpoint: a tensor of '", saved_.path().string(),
              "' was to be read that is not of it");
  return found->second;
}

TUTTI_INLINE at::Tensor ShardedSource::read(const at::Tensor& placeholder) const {
  const Place& place = place_of(placeholder);
  return place.files->read(place.name);
}

TUTTI_INLINE at::Tensor ShardedSource::read_rows(const at::Tensor& placeholder, int rank,
                                                 int ranks) const {
  const Place& place = place_of(placeholder);
  if (placeholder.dim() == 0) {
    return place.files->read(place.name).view({1}).narrow(0, 0, rank == 0 ? 1 : 0);
  }
  return place.files->read(place.name, shard_box(placeholder.sizes().vec(), rank, ranks));
}

TUTTI_INLINE void ShardedSource::read_into(const at::Tensor& placeholder, const TensorBox& box,
                                           const at::Tensor& target) const {
  const Place& place = place_of(placeholder);
  place.files->read_into(place.name, box, target);
}

TUTTI_INLINE Archive ShardedSource::filled(const Archive& state, const ReadPart& read_part) const {
  Archive out;
  detail::OptimizerTexts names(state, "parameters");
  detail::OptimizerTexts shapes(state, "shapes");
  detail::copy_tree(state, "", out, [&](const std::string& path, const at::Tensor& tensor) {
    if (!tensor.is_meta()) {
      return tensor;
    }
    const auto entry = read_part ? detail::optimizer_entry(path) : std::nullopt;
    return entry && shapes(*entry) == c10::str(tensor.sizes()) ? read_part(names(*entry), tensor)
                                                               : read(tensor);
  });
  return out;
}

TUTTI_INLINE Snapshot read_checkpoint(const std::filesystem::path& path,
                                      const ReadOptions& options) {
  if (!is_sharded(path)) {
    return read_snapshot(path, options);
  }
  ShardedSource source(path);
  if (options.verify) {
    source.checkpoint().verify(0, 1, options.state ? "" : "model");
  }
  Snapshot out = source.snapshot(std::nullopt, options.state);
  Archive model;
  if (options.model) {
    detail::copy_tree(out.model, "", model, [&](const std::string&, const at::Tensor& tensor) {
      return source.read(tensor);
    });
  }
  out.model = std::move(model);
  out.state = source.filled(out.state);
  return out;
}

}  // namespace tutti::checkpoint
