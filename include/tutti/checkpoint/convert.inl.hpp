// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/convert.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::filesystem::path new_target(const std::filesystem::path& target) {
  const auto absolute =
      target.empty() ? target : std::filesystem::absolute(target).lexically_normal();
  TUTTI_CHECK(!absolute.filename().empty() && !path_exists(absolute), "checkpoint: '",
              target.string(), "' exists or is no name of a folder; choose another");
  make_folder(absolute.parent_path());
  clean_staging(absolute.parent_path());
  return absolute;
}

// Writes a file of tensors of which some are placeholders.
TUTTI_INLINE WrittenFile write_from(const ShardedSource& source, const std::filesystem::path& path,
                                    std::vector<NamedTensor> tensors, const Metadata& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  return write_file(path, tensors, make_header(tensors, metadata),
                    [&](const std::string&, const at::Tensor& tensor) {
                      return tensor.is_meta() ? source.read(tensor) : tensor.contiguous();
                    });
}

// What rank `rank` of `ranks` has of a whole snapshot.
TUTTI_INLINE ShardedSnapshot part_of(const Snapshot& whole, int rank, int ranks) {
  Snapshot own;
  PartPlaces parts;
  own.meta = whole.meta;
  own.meta.erase("saver_id");  // no saver has written it
  const auto cut = [&](const std::string& path, const at::Tensor& tensor) {
    const TensorBox box = shard_box(tensor.sizes().vec(), rank, ranks);
    parts[path] = {{.offsets = box.offsets, .shape = tensor.sizes().vec()}};
    return tensor.narrow(0, box.offsets[0], box.sizes[0]);
  };
  copy_tree(whole.model, "model/", own.model,
            [&](const std::string& path, const at::Tensor& tensor) {
              return tensor.dim() > 0 ? cut(path, tensor) : tensor;
            });
  OptimizerTexts shapes(whole.state, "shapes");
  copy_tree(whole.state, "", own.state, [&](const std::string& path, const at::Tensor& tensor) {
    const auto entry = optimizer_entry(path);
    const bool of_parameter = entry && shapes(*entry) == c10::str(tensor.sizes());
    return of_parameter && tensor.dim() > 0 ? cut("state/" + path, tensor) : tensor;
  });
  return to_sharded(own, parts, rank);
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE void consolidate_checkpoint(const std::filesystem::path& from,
                                         const std::filesystem::path& target) {
  ShardedSource source(from);
  source.checkpoint().verify();
  const auto absolute = detail::new_target(target);
  Snapshot snapshot = source.snapshot(std::nullopt, /*with_state=*/true);
  snapshot.meta.erase("saver_id");  // no saver has written it
  SnapshotFiles files = to_files(snapshot);
  detail::Staging staging(absolute);
  files.manifest.files["model.safetensors"] = detail::write_from(
      source, staging.path() / "model.safetensors", files.model, {{"format", "pt"}});
  if (!files.state.empty()) {
    files.manifest.files["state.safetensors"] =
        detail::write_from(source, staging.path() / "state.safetensors", files.state, {});
  }
  detail::write_text(staging.path() / "manifest.json", to_text(files.manifest));
  staging.publish(/*replace=*/false);
}

TUTTI_INLINE void shard_checkpoint(const std::filesystem::path& from,
                                   const std::filesystem::path& target, int ranks) {
  TUTTI_CHECK_VALUE(ranks >= 1, "shard_checkpoint: ranks is ", ranks, ", expected at least 1");
  const Snapshot whole = read_snapshot(from);
  const auto absolute = detail::new_target(target);
  std::deque<ShardedSnapshot> parts;
  std::deque<detail::ShardedSave> saves;
  std::vector<std::string> reports;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(detail::part_of(whole, rank, ranks));
    saves.emplace_back(absolute, parts.back(), rank, ranks, /*overwrite=*/false);
  }
  const std::string folder = saves.front().open();
  for (detail::ShardedSave& save : saves) {
    reports.push_back(save.write(folder));
  }
  saves.front().commit(reports);
}

TUTTI_INLINE void shard_weights(const std::filesystem::path& whole,
                                const std::filesystem::path& target, int ranks) {
  TUTTI_CHECK_VALUE(ranks >= 1, "shard_weights: ranks is ", ranks, ", expected at least 1");
  const WeightFiles files = WeightFiles::open(whole);
  detail::Staging staging(detail::new_target(target));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<TensorShard> shards;
    for (const StoredTensor& tensor : files.tensors()) {
      const bool cut = !tensor.shape.empty();
      if (cut || rank == 0) {
        const TensorBox box = cut ? shard_box(tensor.shape, rank, ranks) : whole_box(tensor.shape);
        const at::Tensor view = tensor.view();
        shards.push_back({.name = tensor.name,
                          .part = cut ? view.narrow(0, box.offsets[0], box.sizes[0]) : view,
                          .offsets = box.offsets});
      }
    }
    const auto mine = detail::written_by(shards, rank, ranks);
    if (!mine.empty()) {
      detail::write_shard_file(staging.path() / detail::shard_file_name(rank), mine);
    }
  }
  staging.publish(/*replace=*/false);
}

}  // namespace tutti::checkpoint
