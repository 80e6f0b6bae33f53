// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/snapshot.hpp>

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
  const std::string pickled = path_exists(path) ? std::string() : pickled_shards(folder);
  TUTTI_CHECK(pickled.empty(), "checkpoint: the folder '", folder.string(), "' ", pickled);
  TUTTI_CHECK(path_exists(path), "checkpoint: '", folder.string(),
              "' has no manifest.json; it is no checkpoint, or one that was not finished",
              path_exists(folder / "config.json")
                  ? "; it has a config.json, as folders of weights of Hugging Face and timm have: "
                    "read it by models::from_pretrained()"
              : path_exists(folder / "latest")
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
