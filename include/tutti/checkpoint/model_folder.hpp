// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// Options of write_model_folder().
struct ModelFolderOptions {
  /// Bytes of a file at most; a tensor that is larger has a file alone.
  std::uint64_t max_shard_size = 5'000'000'000;
  /// What float, double, half and bfloat16 tensors are written as; Undefined: their own type.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  /// Replace a folder of weights of that name. Its other files, a tokenizer's say, are kept.
  bool overwrite = false;
  /// A folder whose files beside the weights are copied: tokenizer, generation_config.json. Empty:
  /// none.
  std::filesystem::path copy_files_from{};
  /// The files' names: `model.safetensors` and `config.json`, say, or PEFT's.
  std::string weights_name = "model";
  std::string config_name = "config.json";
  /// `__metadata__` of the files of weights; readers expect this.
  Metadata metadata{{"format", "pt"}};
};

/// How weights are to be written by write_model_folder().
struct ModelFolder {
  tutti::detail::Json config;
  ModelFolderOptions options{};
};

/// Writes weights as a folder that Hugging Face's from_pretrained reads: `model.safetensors`, or
/// where that would be larger than a shard may be, `model-00001-of-0000N.safetensors`, filled in
/// the order of the tensors, and `model.safetensors.index.json`; and `config.json`. The options may
/// name them otherwise.
///
/// At every moment the folder is absent, the old one, or the new one whole; its parent folders are
/// made. One tensor at a time is copied when it is not contiguous in host memory. Throws c10::Error
/// when the folder is there and not empty and overwrite is not set, when it has folders in it and
/// is none of weights, or when writing fails; then nothing is left of it.
void write_model_folder(const std::filesystem::path& target,
                        const std::vector<NamedTensor>& tensors, const tutti::detail::Json& config,
                        const ModelFolderOptions& options = {});

/// The metadata of a folder of weights: those of its first safetensors file. Throws c10::Error when
/// that is damaged or there is none.
Metadata read_folder_metadata(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES

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

#endif
