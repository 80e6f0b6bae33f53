// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/weight_files.hpp>

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
