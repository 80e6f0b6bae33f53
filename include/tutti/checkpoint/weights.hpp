// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
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
  constexpr std::uint64_t most = std::uint64_t{1} << 25;
  const File file = File::open_for_reading(path);
  TUTTI_CHECK(file.size() <= most, "checkpoint: '", path.string(), "' has ", file.size(),
              " bytes, expected an index of at most ", most);
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  std::set<std::string> shards;
  try {
    // A name and the name of a file with its extension have more than 16 bytes.
    const auto index = tutti::detail::parse_json(text, {.values = 1000 + text.size() / 16});
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

/// The first or last bytes of a file, `most` of them at most.
inline std::string part_of(const File& file, std::uint64_t most, bool last) {
  const std::uint64_t size = file.size();
  std::string out(std::min(size, most), '\0');
  file.read_at(last ? size - out.size() : 0, out.data(), out.size());
  return out;
}

/// Whether a file begins as the safetensors format says: the length of a header that fits into it,
/// and a '{'. Nothing else about its first bytes is known: one length in 32 begins as a pickle
/// does.
inline bool begins_as_safetensors(const File& file) {
  const std::string start = part_of(file, 9, /*last=*/false);
  if (start.size() < 9 || start[8] != '{') {
    return false;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  return length <= file.size() - sizeof length;
}

/// Says what to do with a file of torch.save(). Python's is a zip archive around a pickle, and was
/// a pickle alone; that of C++ is a TorchScript archive, a zip archive with constants too, which
/// torch.load() refuses.
inline void refuse_torch(const File& file) {
  const std::string start = part_of(file, 256, /*last=*/false);
  const std::string names = part_of(file, std::uint64_t{1} << 20, /*last=*/true);
  const auto has = [](const std::string& text, const char* name) {
    return text.find(name) != std::string::npos;
  };
  const bool zip = start.starts_with("PK\x03\x04");
  const bool script = zip && has(names, "/constants.pkl");
  const bool pickle = (zip && (has(names, "/data.pkl") || has(start, "/data.pkl"))) ||
                      (start.size() > 1 && start[0] == '\x80' && start[1] > 0 && start[1] < 6);
  TUTTI_CHECK(
      !script && !pickle, "checkpoint: '", file.path().string(), "' is ",
      script ? "an archive of C++'s torch::save() or of TorchScript"
             : "a pickle of Python's torch.save()",
      ", which can run code when it is opened; convert it in Python, with safetensors and numpy "
      "installed: state = ",
      script ? "torch.jit.load(path).state_dict()"
             : "torch.load(path, weights_only=True), or the member of it that is the state dict",
      "; safetensors.torch.save_file({k: v.contiguous().clone() for k, v in state.items()}, "
      "'model.safetensors')");
  TUTTI_CHECK(!zip, "checkpoint: '", file.path().string(),
              "' is a zip archive, expected a safetensors file");
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
    if (const auto file = detail::File::open_for_reading(found);
        !detail::begins_as_safetensors(file)) {
      detail::refuse_torch(file);
    }
    detail::add_tensors(found, archive);
  }
  return archive;
}

}  // namespace tutti::checkpoint
