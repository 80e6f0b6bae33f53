// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/model_folder.hpp>

namespace tutti::checkpoint {

namespace detail {

// Bytes of a tensor in the file.
TUTTI_INLINE std::uint64_t written_bytes(const NamedTensor& tensor, c10::ScalarType float_type) {
  return static_cast<std::uint64_t>(tensor.second.numel()) *
         c10::elementSize(written_type(tensor.second, float_type));
}

// The tensors of each file: one is closed before it would exceed the limit.
TUTTI_INLINE std::vector<std::vector<NamedTensor>> split_shards(
    const std::vector<NamedTensor>& tensors, const ModelFolderOptions& options) {
  std::vector<std::vector<NamedTensor>> out(1);
  std::uint64_t size = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::uint64_t bytes = written_bytes(tensor, options.dtype);
    if (!out.back().empty() && size + bytes > options.max_shard_size) {
      out.emplace_back();
      size = 0;
    }
    out.back().push_back(tensor);
    size += bytes;
  }
  return out;
}

TUTTI_INLINE std::string shard_name(const std::string& weights, std::size_t i, std::size_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05zu-of-%05zu.safetensors", i + 1, count);
  return weights + text.data();
}

TUTTI_INLINE void write_weights(const std::filesystem::path& folder,
                                const std::vector<NamedTensor>& tensors,
                                const ModelFolderOptions& options) {
  using tutti::detail::Json;
  const auto shards = split_shards(tensors, options);
  if (shards.size() == 1) {
    write_safetensors(folder / (options.weights_name + ".safetensors"), tensors, options.metadata,
                      options.dtype);
    return;
  }
  Json::Object map;
  std::int64_t bytes = 0;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(options.weights_name, i, shards.size());
    write_safetensors(folder / name, shards[i], options.metadata, options.dtype);
    for (const NamedTensor& tensor : shards[i]) {
      map.emplace_back(tensor.first, name);
      bytes += static_cast<std::int64_t>(written_bytes(tensor, options.dtype));
      elements += tensor.second.numel();
    }
  }
  std::sort(map.begin(), map.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  write_json(folder / (options.weights_name + ".safetensors.index.json"),
             Json::Object{
                 {"metadata", Json::Object{{"total_parameters", elements}, {"total_size", bytes}}},
                 {"weight_map", std::move(map)}});
}

// Whether a file of a model's folder is written anew with the weights.
TUTTI_INLINE bool is_rewritten(std::string_view name) {
  return name == "config.json" || name == "adapter_config.json" || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json") || name.starts_with("pytorch_model");
}

// Copies what belongs to a model beside its weights.
TUTTI_INLINE void copy_companions(const std::filesystem::path& from,
                                  const std::filesystem::path& to) {
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !is_rewritten(name) && !name.starts_with('.') &&
        !path_exists(to / name)) {
      const File source = File::open_for_reading(entry.path());
      File target = File::create(to / name);
      std::string piece(std::size_t{1} << 20, '\0');
      for (std::uint64_t at = 0; at < source.size(); at += piece.size()) {
        piece.resize(std::min<std::uint64_t>(piece.size(), source.size() - at));
        source.read_at(at, piece.data(), piece.size());
        target.write(piece.data(), piece.size());
      }
      target.sync();
      target.close();
    }
  }
}

// Whether something is there that is to be replaced. Anything but a folder of weights is refused.
TUTTI_INLINE bool check_target(const std::filesystem::path& target,
                               const ModelFolderOptions& options) {
  if (!path_exists(target)) {
    return false;
  }
  TUTTI_CHECK(is_folder(target), "checkpoint: '", target.string(),
              "' is a file, expected the name of a folder for weights");
  if (std::filesystem::is_empty(target)) {
    return false;
  }
  TUTTI_CHECK(options.overwrite, "checkpoint: the folder '", target.string(),
              "' has files; set overwrite to replace its weights, or choose another name");
  TUTTI_CHECK(path_exists(target / options.config_name), "checkpoint: the folder '",
              target.string(), "' has no ", options.config_name,
              ", so it is none of weights and is not replaced");
  for (const auto& entry : std::filesystem::directory_iterator(target)) {
    TUTTI_CHECK(!std::filesystem::is_directory(entry.symlink_status()), "checkpoint: the folder '",
                target.string(), "' has the folder '", entry.path().filename().string(),
                "' in it, which replacing it would remove; choose another name");
  }
  return true;
}

}  // namespace detail

TUTTI_INLINE void write_model_folder(const std::filesystem::path& target,
                                     const std::vector<NamedTensor>& tensors,
                                     const tutti::detail::Json& config,
                                     const ModelFolderOptions& options) {
  namespace fs = std::filesystem;
  fs::path absolute = target.empty() ? target : fs::absolute(target).lexically_normal();
  if (absolute.filename().empty()) {
    absolute = absolute.parent_path();  // a slash at the end
  }
  TUTTI_CHECK(!absolute.filename().empty(), "checkpoint: '", target.string(),
              "' is no name of a folder for weights");
  TUTTI_CHECK_VALUE(options.max_shard_size > 0, "checkpoint: max_shard_size is 0, expected bytes");
  TUTTI_CHECK(options.copy_files_from.empty() || detail::is_folder(options.copy_files_from),
              "checkpoint: copy_files_from is '", options.copy_files_from.string(),
              "', and there is no such folder; expected the one whose tokenizer and the like are "
              "copied, or nothing");
  const bool replaces = detail::check_target(absolute, options);
  make_folder(absolute.parent_path());
  detail::clean_staging(absolute.parent_path());
  detail::Staging staging(absolute);
  detail::write_weights(staging.path(), tensors, options);
  write_json(staging.path() / options.config_name, config);
  if (replaces) {
    detail::copy_companions(absolute, staging.path());
  }
  if (!options.copy_files_from.empty()) {
    detail::copy_companions(options.copy_files_from, staging.path());
  }
  staging.publish(replaces);
}

TUTTI_INLINE Metadata read_folder_metadata(const std::filesystem::path& folder) {
  std::filesystem::path first;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors" && (first.empty() || entry.path() < first)) {
      first = entry.path();
    }
  }
  TUTTI_CHECK(!first.empty(), "checkpoint: the folder '", folder.string(),
              "' has no safetensors file");
  return SafetensorsFile(first).metadata();
}

}  // namespace tutti::checkpoint
