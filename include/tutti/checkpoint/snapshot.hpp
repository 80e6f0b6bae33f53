// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/version.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/manifest.hpp>
#include <tutti/checkpoint/model_folder.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/version.hpp>

namespace tutti::checkpoint {

/// A whole checkpoint in memory. On disk it is a folder:
///
///     manifest.json      format, versions, meta, the state's tree, size and checksum of the others
///     model.safetensors  the weights under their PyTorch names; Python's safetensors opens it
///     state.safetensors  the tensors of the state, named by their path in the tree
struct Snapshot {
  Archive meta;   ///< Facts about the run: names, counts, times. No tensors.
  Archive model;  ///< Tensors only.
  Archive
      state;  ///< Optimizers, policies, timestamp, generators: anything; empty for weights only.
};

/// What read_snapshot() reads; sizes of what it leaves out are checked all the same.
struct ReadOptions {
  bool model = true;
  bool state = true;
  bool verify = true;  ///< Compare checksums; costs a few per cent of the reading.
};

namespace detail {

inline std::string tutti_version() {
  return std::to_string(TUTTI_VERSION_MAJOR) + '.' + std::to_string(TUTTI_VERSION_MINOR) + '.' +
         std::to_string(TUTTI_VERSION_PATCH);
}

void write_text(const std::filesystem::path& path, const std::string& text);

Manifest read_manifest(const std::filesystem::path& folder);

/// The tensors of one file of the folder, compared with what the manifest says of it.
std::vector<NamedTensor> read_tensors(const std::filesystem::path& folder, const Manifest& manifest,
                                      const std::string& name, bool wanted, bool verify);

}  // namespace detail

/// A checkpoint whose text is made and whose tensors are listed: what a writer needs, in the
/// background too when the tensors are copies.
struct SnapshotFiles {
  Manifest manifest;               ///< without the files
  std::vector<NamedTensor> model;  ///< model.safetensors
  std::vector<NamedTensor> state;  ///< state.safetensors; no file when empty
  /// Set: `model` is written as a folder of Hugging Face's, and nothing else.
  std::optional<ModelFolder> folder{};
};

/// The files of a snapshot; tensors are shared with it, not copied.
/// Throws c10::Error when the model holds anything but tensors, or meta a tensor.
SnapshotFiles to_files(const Snapshot& snapshot);

/// Writes a checkpoint folder; at every moment the target is absent, the old one, or the new one
/// whole.
///
/// Everything is written beside `target` under a temporary name, fsynced, then renamed; when this
/// returns the checkpoint survives a power failure. What interrupted writers left in the same
/// folder is removed. target: its parent folders are made when they are missing. overwrite: replace
/// a checkpoint of that name. A folder of Hugging Face's carries the `saver_id` of the manifest's
/// meta in the metadata of its files. Throws c10::Error when the name is taken and overwrite is not
/// set, or writing fails (disk full, no permission); then nothing of this checkpoint remains and
/// older ones are untouched.
void write_files(const std::filesystem::path& target, const SnapshotFiles& files,
                 bool overwrite = false);

/// write_files() of a snapshot. Throws as to_files() and write_files() do.
inline void write_snapshot(const std::filesystem::path& target, const Snapshot& snapshot,
                           bool overwrite = false) {
  write_files(target, to_files(snapshot), overwrite);
}

/// Reads a checkpoint folder, or what a `latest` pointer names.
///
/// path: also one made by point_latest(). Tensors come on the CPU.
/// Throws c10::Error that says which file is refused and why: missing, truncated, damaged, of
/// another checkpoint or program, or of a newer version.
Snapshot read_snapshot(const std::filesystem::path& path, const ReadOptions& options = {});

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/snapshot.inl.hpp>
#endif
