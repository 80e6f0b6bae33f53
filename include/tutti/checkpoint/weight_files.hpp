// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/weight_index.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/stored_tensor.hpp>
#include <tutti/checkpoint/torch_pickle.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// The tensors of a model on disk, by name: all headers are read and checked, no tensor yet.
///
///     const auto files = WeightFiles::open("/models/gpt2");
///     files.find("wte.weight")->view();
///
/// A folder is read as Hugging Face's: `model.safetensors`, else `model.safetensors.index.json` and
/// the shards that it lists, else `pytorch_model.bin`, else `pytorch_model.bin.index.json` and its
/// shards. A file is a safetensors file, an index (`*.index.json`) or a file of torch.save(),
/// whatever it is called.
class WeightFiles {
 public:
  /// Throws c10::Error that names the path and the reason: nothing there, no file of weights (and
  /// what is there), a damaged file, or an index that does not agree with its shards.
  static WeightFiles open(const std::filesystem::path& path);

  /// In the order of the files.
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const& { return tensors_; }
  std::vector<StoredTensor>& tensors() && = delete;  // a loop over them would outlive them

  /// The tensor of that name; null when there is none.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;

  /// What was opened: the file, the index, or the path of one file of a folder.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  WeightFiles(const std::filesystem::path& path, std::vector<StoredTensor> tensors);

  static std::vector<StoredTensor> read_file(const std::filesystem::path& path);
  static std::vector<StoredTensor> read_index(const std::filesystem::path& path);
  static std::filesystem::path file_of(const std::filesystem::path& folder);

  std::string path_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> places_;
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/weight_files.inl.hpp>
#endif
