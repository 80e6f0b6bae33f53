// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/manifest.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/checkpoint/weight_files.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

/// Whole checkpoints out of sharded ones, and the other way round.
namespace tutti::checkpoint {

/// Writes a sharded checkpoint as a whole one, its random streams and all; one tensor at a time is
/// in memory.
///
/// from: also a pointer to one. target: a new folder, made whole or not at all. Throws c10::Error
/// when it exists, or `from` is damaged or no sharded checkpoint.
void consolidate_checkpoint(const std::filesystem::path& from, const std::filesystem::path& target);

/// Writes a whole checkpoint as one that `ranks` ranks have written, each its rows of the weights
/// and of what optimizers keep of them. The random streams are those of so many first ranks.
///
/// Arguments and errors as in consolidate_checkpoint(). ranks: at least 1.
void shard_checkpoint(const std::filesystem::path& from, const std::filesystem::path& target,
                      int ranks);

/// Cuts whole weights into the files of so many ranks, in dimension 0; scalars go to the first.
///
/// whole: what WeightFiles::open() reads: a file, or a folder of Hugging Face's. target: a new
/// folder, made whole or not at all. Throws c10::Error when it exists, or the weights are damaged.
void shard_weights(const std::filesystem::path& whole, const std::filesystem::path& target,
                   int ranks);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES

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

#endif
