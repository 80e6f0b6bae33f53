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
#include <tutti/checkpoint/model_folder.inl.hpp>
#endif
