// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <tutti/config.hpp>

/// Folders of weights in several files, as Hugging Face and PyTorch write them.
namespace tutti::checkpoint::detail {

/// What an index (`model.safetensors.index.json`) says: the file of each name.
/// Throws c10::Error when it is damaged, or names a file in another folder.
std::map<std::string, std::string> weight_map(const std::filesystem::path& path);

/// What is in a folder, for messages: "config.json, tokenizer.json, and 3 more".
std::string listing(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::map<std::string, std::string> weight_map(const std::filesystem::path& path) {
  std::map<std::string, std::string> out;
  try {
    const tutti::detail::Json index = read_json(path);
    for (const auto& [name, shard] : index["weight_map"].object()) {
      out.emplace(name, shard.string());
    }
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, "checkpoint: '", path.string(), "' is refused: ", error.what());
  }
  for (const auto& [name, shard] : out) {
    TUTTI_CHECK(!shard.empty() && shard != "." && shard != ".." &&
                    shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos,
                "checkpoint: '", path.string(), "' lists the file ",
                tutti::detail::json_quoted(shard), ", expected a name without a folder");
  }
  return out;
}

TUTTI_INLINE std::string listing(const std::filesystem::path& folder) {
  constexpr std::size_t shown = 10;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::string out;
  for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
    out += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > shown) {
    out += ", and " + std::to_string(names.size() - shown) + " more";
  }
  return out.empty() ? "nothing" : out;
}

}  // namespace tutti::checkpoint::detail

#endif
