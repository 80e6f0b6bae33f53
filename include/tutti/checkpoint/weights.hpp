#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

namespace detail {

inline void add_tensors(const std::filesystem::path& path, Archive& archive) {
  for (const auto& [name, tensor] : read_safetensors(path)) {
    archive.put(name, tensor);
  }
}

/// The files that an index of Hugging Face lists beside itself.
inline void add_shards(const std::filesystem::path& path, Archive& archive) {
  const File file = File::open_for_reading(path);
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  std::set<std::string> shards;
  try {
    const auto index = tutti::detail::parse_json(text);
    for (const auto& [name, shard] : index["weight_map"].object()) {
      shards.insert(shard.string());
    }
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, "checkpoint: '", path.string(), "' is refused: ", error.what());
  }
  for (const auto& shard : shards) {
    TUTTI_CHECK(std::filesystem::path(shard).filename() == shard && shard != "..", "checkpoint: '",
                path.string(), "' lists the file '", shard, "', expected a name without a folder");
    add_tensors(path.parent_path() / shard, archive);
  }
}

/// Says what to do with a file of torch.save(), a zip archive or a pickle.
inline void refuse_pickle(const std::filesystem::path& path) {
  const File file = File::open_for_reading(path);
  std::string magic(file.size() < 2 ? 0 : 2, '\0');
  file.read_at(0, magic.data(), magic.size());
  TUTTI_CHECK(
      magic != "PK" && !magic.starts_with('\x80'), "checkpoint: '", path.string(),
      "' is a pickle of torch.save(), which can run code when it is opened; convert it in Python: ",
      "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')");
}

}  // namespace detail

/// Weights under their PyTorch names, for load_module().
///
/// path: a checkpoint folder of this library or a pointer to it; a safetensors file of PyTorch,
/// torchvision, timm or Hugging Face; or the `*.safetensors.index.json` of a model in several
/// files. Throws c10::Error when it is none of these or damaged.
inline Archive read_weights(const std::filesystem::path& path) {
  const auto found = resolve(path);
  TUTTI_CHECK(detail::path_exists(found), "checkpoint: there is no '", path.string(), "'");
  if (detail::is_folder(found)) {
    return read_snapshot(found, {.state = false}).model;
  }
  Archive archive;
  if (found.extension() == ".json") {
    detail::add_shards(found, archive);
  } else {
    detail::refuse_pickle(found);
    detail::add_tensors(found, archive);
  }
  return archive;
}

}  // namespace tutti::checkpoint
