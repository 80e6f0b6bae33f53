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

namespace tutti::checkpoint {

namespace detail {

// The first bytes of a file, `most` of them at most.
TUTTI_INLINE std::string start_of(const File& file, std::uint64_t most) {
  std::string out(std::min(file.size(), most), '\0');
  file.read_at(0, out.data(), out.size());
  return out;
}

// Whether a file begins as the safetensors format says: the length of a header that fits into it,
// and a '{'. Nothing else about its first bytes is known: one length in 32 begins as a pickle
// does.
TUTTI_INLINE bool begins_as_safetensors(const File& file) {
  const std::string start = start_of(file, 9);
  if (start.size() < 9 || start[8] != '{') {
    return false;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  return length <= file.size() - sizeof length;
}

}  // namespace detail

TUTTI_INLINE WeightFiles::WeightFiles(const std::filesystem::path& path,
                                      std::vector<StoredTensor> tensors)
    : path_(path.string()), tensors_(std::move(tensors)) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    places_.emplace(tensors_[i].name, i);
  }
}

TUTTI_INLINE const StoredTensor* WeightFiles::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found != places_.end() ? &tensors_[found->second] : nullptr;
}

TUTTI_INLINE std::filesystem::path WeightFiles::file_of(const std::filesystem::path& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    if (detail::path_exists(folder / name)) {
      return folder / name;
    }
  }
  TUTTI_CHECK(false, "checkpoint: the folder '", folder.string(), "' has ", detail::listing(folder),
              ", expected weights: model.safetensors, model.safetensors.index.json and its shards, "
              "or pytorch_model.bin");
}

TUTTI_INLINE std::vector<StoredTensor> WeightFiles::read_file(const std::filesystem::path& path) {
  const detail::File file = detail::File::open_for_reading(path);
  if (detail::begins_as_safetensors(file)) {
    return stored_in_safetensors(path);
  }
  const std::string start = detail::start_of(file, 4);
  TUTTI_CHECK(!(start.size() > 1 && start[0] == '\x80' && start[1] > 0 && start[1] < 6),
              "checkpoint: '", path.string(),
              "' is a pickle alone, as torch.save() wrote it before PyTorch 1.6 or with "
              "_use_new_zipfile_serialization=False, which is not read; save it again in Python: "
              "torch.save(torch.load(path, weights_only=True), path)");
  return start == "PK\x03\x04" ? stored_in_torch_file(path) : stored_in_safetensors(path);
}

TUTTI_INLINE std::vector<StoredTensor> WeightFiles::read_index(const std::filesystem::path& path) {
  const auto map = detail::weight_map(path);
  std::map<std::string, std::vector<StoredTensor>> shards;
  for (const auto& [name, shard] : map) {
    if (shards.count(shard) == 0) {
      TUTTI_CHECK(detail::path_exists(path.parent_path() / shard), "checkpoint: the shard '", shard,
                  "' is missing, which '", path.string(), "' lists; the folder has ",
                  detail::listing(path.parent_path().empty() ? "." : path.parent_path()));
      shards.emplace(shard, read_file(path.parent_path() / shard));
    }
  }
  std::vector<StoredTensor> out;
  for (auto& [shard, tensors] : shards) {
    for (StoredTensor& tensor : tensors) {
      const auto found = map.find(tensor.name);
      TUTTI_CHECK(found != map.end() && found->second == shard, "checkpoint: the shard '", shard,
                  "' has the tensor '", tensor.name, "', which '", path.string(), "' ",
                  found == map.end() ? "does not list" : "gives to '" + found->second + "'");
      out.push_back(std::move(tensor));
    }
  }
  if (out.size() != map.size()) {
    std::map<std::string_view, int> present;
    for (const StoredTensor& tensor : out) {
      present[tensor.name] = 1;
    }
    for (const auto& [name, shard] : map) {
      TUTTI_CHECK(present.count(name) != 0, "checkpoint: '", path.string(), "' lists the tensor '",
                  name, "' in '", shard, "', which lacks it");
    }
  }
  return out;
}

TUTTI_INLINE WeightFiles WeightFiles::open(const std::filesystem::path& path) {
  const auto found = resolve(path);
  TUTTI_CHECK(detail::path_exists(found), "checkpoint: there is no '", path.string(), "'");
  const auto file = detail::is_folder(found) ? file_of(found) : found;
  return {file, file.extension() == ".json" ? read_index(file) : read_file(file)};
}

}  // namespace tutti::checkpoint

#endif
