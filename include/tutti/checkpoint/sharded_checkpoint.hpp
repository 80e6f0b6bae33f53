// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/version.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/filename.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/manifest.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/checkpoint/sharded_files.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh64.hpp>

namespace tutti::checkpoint {

/// What one rank has of a tensor.
struct TensorShard {
  std::string name;
  at::Tensor part;                      ///< Dense, of any stride and device; may have no element.
  std::vector<std::int64_t> offsets{};  ///< Of `part` in the tensor; empty: it is at the beginning.
  bool replicated = false;              ///< Every rank has it whole; one of them writes it.
  std::vector<std::int64_t> shape{};    ///< Of the tensor; empty: it goes as far as the parts.
};

/// What one rank gives to a checkpoint that all write together. On disk it is a folder:
///
///     manifest.json          as a Snapshot's, and the shapes of all tensors
///     model/shard-00001-model-00001-of-00001.safetensors ...   one file a rank, DCP's layout
///     optim/shard-00001-model-00001-of-00001.safetensors ...
///     ranks/00001.safetensors ...                              what each rank has for itself
///
/// A rank that has several boxes of one tensor has as many files, since a name stands in a file
/// once. Python's HuggingFaceStorageReader reads `model` and `optim`.
struct ShardedSnapshot {
  /// By folder: "model", "optim". Every rank lists its replicated tensors in the same order.
  std::map<std::string, std::vector<TensorShard>> folders;
  std::vector<NamedTensor> own;  ///< This rank's generators and streams; may be empty.
  std::optional<int> stream{};   ///< The number under which `own` is read; none: the rank's.
  Archive meta;                  ///< Facts about the run. No tensors. Rank 0's is written.
  Archive state;                 ///< The run's tree. Rank 0's is written.
  /// Where the tensors of `state` are among the folders: by their path, "optim/state.w.exp_avg".
  detail::TensorPlaces places{};
};

/// `G` speaks to the other ranks: `g.rank()` and `g.size()` are ints, `g.broadcast_bytes(text, 0)`
/// is rank 0's text, `g.all_gather_bytes(text)` has every rank's. A dist::Communicator does.
template <class G>
concept SavesTogether = requires(G& group, const std::string& text) {
  { group.rank() } -> std::convertible_to<int>;
  { group.size() } -> std::convertible_to<int>;
  { group.broadcast_bytes(text, 0) } -> std::convertible_to<std::string>;
  { group.all_gather_bytes(text) } -> std::convertible_to<std::vector<std::string>>;
};

namespace detail {

/// One rank's part of a save: open() and commit() do something on rank 0 alone. What goes wrong is
/// a text that begins with '!', so that each rank learns it and none waits.
class ShardedSave {
 public:
  ShardedSave(std::filesystem::path target, const ShardedSnapshot& snapshot, int rank, int ranks,
              bool overwrite)
      : target_(std::move(target)),
        snapshot_(snapshot),
        rank_(rank),
        ranks_(ranks),
        overwrite_(overwrite) {}

  /// The folder that all write into.
  std::string open();
  /// Writes this rank's files; what rank 0 has to know of them.
  std::string write(const std::string& folder);
  /// Makes the folder visible under its name when all have written.
  std::string commit(const std::vector<std::string>& reports);

 private:
  Manifest check(const std::vector<std::string>& reports) const;

  std::filesystem::path target_;
  const ShardedSnapshot& snapshot_;
  int rank_;
  int ranks_;
  bool overwrite_;
  std::optional<Staging> staging_;
};

/// What `work` returns; of an exception its text behind a '!'.
template <class F>
std::string text_or_failure(F&& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    return std::string("!") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("!") + error.what();
  }
}

inline void throw_failure(const std::string& text) {
  TUTTI_CHECK(!text.starts_with('!'), text.substr(1));
}

}  // namespace detail

/// Writes a sharded checkpoint, all ranks together; a collective. At every moment the target is
/// absent, the old one, or the new one whole, whatever rank dies in whatever moment.
///
/// Rank 0 makes a folder beside `target` under a temporary name, each rank writes and fsyncs its
/// files there, and when all have, and each element of each tensor was given by exactly one rank,
/// rank 0 writes the manifest and renames the folder. target: the same on all ranks, on a file
/// system that all see. overwrite: replace a checkpoint of that name.
/// Throws c10::Error on all ranks, naming the rank whose part failed and why; then nothing of it
/// remains and older checkpoints are untouched.
template <SavesTogether Group>
void write_sharded(const std::filesystem::path& target, const ShardedSnapshot& snapshot,
                   Group& group, bool overwrite = false) {
  detail::ShardedSave save(target, snapshot, group.rank(), group.size(), overwrite);
  const std::string folder =
      group.broadcast_bytes(detail::text_or_failure([&] { return save.open(); }), 0);
  detail::throw_failure(folder);
  const auto reports =
      group.all_gather_bytes(detail::text_or_failure([&] { return save.write(folder); }));
  detail::throw_failure(
      group.broadcast_bytes(detail::text_or_failure([&] { return save.commit(reports); }), 0));
}

/// Whether a path is that of a sharded checkpoint, not of a whole one.
///
/// path: also one made by point_latest(). Throws c10::Error when there is no checkpoint.
inline bool is_sharded(const std::filesystem::path& path) {
  return !detail::read_manifest(resolve(path)).sharded.is_null();
}

/// A sharded checkpoint on disk. Ranks of any number read it, each its own boxes:
///
///     const ShardedCheckpoint saved("ep1-ba200");
///     saved.folder("model").read_into(name, shard_box(shape, rank, ranks), shard);
class ShardedCheckpoint {
 public:
  /// Reads the manifest and all headers.
  ///
  /// path: also one made by point_latest(). Throws c10::Error that names what is wrong: no such
  /// checkpoint, a file that is missing, of another size, or not of this checkpoint, a tensor that
  /// is not whole.
  explicit ShardedCheckpoint(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Ranks that wrote it.
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// What a `state` is read by: returns the tensor of that name in a folder.
  using ReadTensor = std::function<at::Tensor(const ShardedFiles& files, const std::string& name)>;

  /// The run's tree; all of its tensors are read whole.
  [[nodiscard]] Archive state() const {
    return state(
        [](const ShardedFiles& files, const std::string& name) { return files.read(name); });
  }
  /// The same with what `read` returns for each tensor. Throws c10::Error when a folder has none of
  /// that name.
  [[nodiscard]] Archive state(const ReadTensor& read) const;
  [[nodiscard]] bool has_folder(const std::string& name) const { return folders_.contains(name); }
  /// The tensors of a folder. Throws c10::Error when there is none of that name.
  [[nodiscard]] const ShardedFiles& folder(const std::string& name) const;
  /// Whether a rank, counted from 0, saved something for itself.
  [[nodiscard]] bool has_own(int rank) const;
  /// What a rank, counted from 0, saved for itself; empty when that is nothing, or fewer ranks
  /// wrote.
  [[nodiscard]] std::vector<NamedTensor> own_of(int rank) const;
  /// Compares the checksum of each file; reads all bytes. Throws c10::Error naming the file.
  ///
  /// rank, ranks: so many readers share the files, and this is one of them. folder: only the files
  /// of that one; empty: all.
  void verify(int rank = 0, int ranks = 1, std::string_view folder = {}) const;

 private:
  void check_files() const;
  void check_tensors();

  std::filesystem::path path_;
  Manifest manifest_;
  int ranks_ = 0;
  std::map<std::string, ShardedFiles> folders_;
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/sharded_checkpoint.inl.hpp>
#endif
