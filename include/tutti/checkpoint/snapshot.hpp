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

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::vector<NamedTensor> tensors_of(const Archive& archive, bool only_tensors) {
  std::vector<NamedTensor> out;
  archive.each_leaf([&](const std::string& path, const Archive::Leaf& leaf) {
    const at::Tensor* tensor = leaf.tensor();
    TUTTI_CHECK(tensor != nullptr || !only_tensors, "checkpoint: '", path,
                "' of the model is no tensor; put it into the state");
    if (tensor != nullptr) {
      out.emplace_back(path, *tensor);
    }
  });
  return out;
}

TUTTI_INLINE std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

TUTTI_INLINE void write_text(const std::filesystem::path& path, const std::string& text) {
  File file = File::create(path);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
}

TUTTI_INLINE Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / "manifest.json";
  TUTTI_CHECK(is_folder(folder), "checkpoint: there is no checkpoint '", folder.string(), "'",
              path_exists(folder) ? "; that is a file, and a checkpoint is a folder (weights of "
                                    "other programs are read by checkpoint::read_weights)"
                                  : "");
  TUTTI_CHECK(path_exists(path), "checkpoint: '", folder.string(),
              "' has no manifest.json; it is no checkpoint, or one that was not finished",
              path_exists(folder / "latest")
                  ? "; its newest checkpoint is '" + (folder / "latest").string() + "'"
                  : "");
  const File file = File::open_for_reading(path);
  TUTTI_CHECK(file.size() <= max_manifest, "checkpoint: '", path.string(), "' has ", file.size(),
              " bytes, more than any manifest needs");
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  try {
    return parse_manifest(text);
  } catch (const std::invalid_argument& error) {
    ::tutti::detail::raise<c10::Error>(
        {__func__, __FILE__, __LINE__},
        "checkpoint: '" + path.string() + "' is refused: " + error.what());
  }
}

TUTTI_INLINE std::vector<NamedTensor> read_tensors(const std::filesystem::path& folder,
                                                   const Manifest& manifest,
                                                   const std::string& name, bool wanted,
                                                   bool verify) {
  const auto facts = manifest.files.find(name);
  if (facts == manifest.files.end()) {
    return {};
  }
  const auto path = folder / name;
  TUTTI_CHECK(path_exists(path), "checkpoint: '", path.string(),
              "' is missing, which the manifest lists");
  const std::uint64_t size = File::open_for_reading(path).size();
  TUTTI_CHECK(
      size == facts->second.size, "checkpoint: '", path.string(), "' has ", size,
      " bytes, the manifest says ", facts->second.size,
      size < facts->second.size ? "; it is truncated" : "; it belongs to another checkpoint");
  if (!wanted) {
    return {};
  }
  const SafetensorsFile file(path);
  if (!verify) {
    return file.read_all();
  }
  tutti::detail::Xxh64 hash;
  auto tensors = file.read_all(hash);
  TUTTI_CHECK(hash.text() == facts->second.checksum, "checkpoint: '", path.string(),
              "' has the checksum ", hash.text(), ", the manifest says ", facts->second.checksum,
              "; it was damaged or changed after it was written");
  return tensors;
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE SnapshotFiles to_files(const Snapshot& snapshot) {
  TUTTI_CHECK(detail::tensors_of(snapshot.meta, false).empty(), "checkpoint: meta holds a tensor");
  SnapshotFiles out;
  out.manifest.created = detail::utc_now();
  out.manifest.tutti = detail::tutti_version();
  out.manifest.libtorch = TORCH_VERSION;
  out.manifest.meta = snapshot.meta;
  out.manifest.state = detail::to_json(snapshot.state);
  out.model = detail::tensors_of(snapshot.model, true);
  out.state = detail::tensors_of(snapshot.state, false);
  return out;
}

TUTTI_INLINE void write_files(const std::filesystem::path& target, const SnapshotFiles& files,
                              bool overwrite) {
  namespace fs = std::filesystem;
  const fs::path absolute = target.empty() ? target : fs::absolute(target).lexically_normal();
  TUTTI_CHECK(!absolute.filename().empty(), "checkpoint: '", target.string(),
              "' ends in a slash or is empty");
  TUTTI_CHECK(overwrite || !detail::path_exists(absolute), "checkpoint: '", target.string(),
              "' exists; set overwrite to replace it (of a trainer save_overwrite), or choose "
              "another name");
  if (files.folder) {
    ModelFolderOptions options = files.folder->options;
    options.overwrite = overwrite;
    options.metadata["saver_id"] = files.manifest.meta.get_or("saver_id", std::string());
    write_model_folder(absolute, files.model, files.folder->config, options);
    return;
  }
  Manifest manifest = files.manifest;
  make_folder(absolute.parent_path());
  detail::clean_staging(absolute.parent_path());
  detail::Staging staging(absolute);
  manifest.files["model.safetensors"] =
      write_safetensors(staging.path() / "model.safetensors", files.model, {{"format", "pt"}});
  if (!files.state.empty()) {
    manifest.files["state.safetensors"] =
        write_safetensors(staging.path() / "state.safetensors", files.state);
  }
  detail::write_text(staging.path() / "manifest.json", to_text(manifest));
  staging.publish(overwrite);
}

TUTTI_INLINE Snapshot read_snapshot(const std::filesystem::path& path, const ReadOptions& options) {
  const auto folder = resolve(path);
  const Manifest manifest = detail::read_manifest(folder);
  TUTTI_CHECK(manifest.sharded.is_null(), "checkpoint: '", folder.string(),
              "' is sharded, expected one whole; read it by checkpoint::read_checkpoint, or by "
              "checkpoint::ShardedCheckpoint");
  auto model =
      detail::read_tensors(folder, manifest, "model.safetensors", options.model, options.verify);
  auto state =
      detail::read_tensors(folder, manifest, "state.safetensors", options.state, options.verify);
  Snapshot out;
  out.meta = manifest.meta;
  for (auto& [name, tensor] : model) {
    out.model.put(name, tensor);
  }
  if (options.state) {
    try {
      out.state = detail::from_json(manifest.state, {state.begin(), state.end()});
    } catch (const std::invalid_argument& error) {
      TUTTI_CHECK(false, "checkpoint: '", folder.string(), "' is refused: ", error.what());
    }
  }
  return out;
}

}  // namespace tutti::checkpoint

#endif
