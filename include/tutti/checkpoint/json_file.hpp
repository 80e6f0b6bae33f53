// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// The JSON value that a file holds, as the files beside weights do: config.json, the index of
/// shards, generation_config.json. Numbers may be NaN, Infinity and -Infinity, as Python writes
/// them.
///
/// most: bytes that the file may have. Throws c10::Error that names the path when there is no such
/// file, it is larger, or its text is no JSON.
tutti::detail::Json read_json(const std::filesystem::path& path,
                              std::uint64_t most = std::uint64_t{1} << 25);

/// Writes a value as a new JSON file, indented by two spaces and ending in a newline, and fsyncs
/// it. Throws c10::Error when the file exists or cannot be written.
void write_json(const std::filesystem::path& path, const tutti::detail::Json& value);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES

namespace tutti::checkpoint {

TUTTI_INLINE tutti::detail::Json read_json(const std::filesystem::path& path, std::uint64_t most) {
  const detail::File file = detail::File::open_for_reading(path);
  TUTTI_CHECK(file.size() <= most, "checkpoint: '", path.string(), "' has ", file.size(),
              " bytes, expected a JSON file of at most ", most);
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  try {
    // A value takes some hundred bytes of memory, also where the text has two for it.
    return tutti::detail::parse_json(text,
                                     {.values = 100'000 + text.size() / 16, .not_finite = true});
  } catch (const std::invalid_argument& error) {
    ::tutti::detail::raise<c10::Error>(
        {__func__, __FILE__, __LINE__},
        "checkpoint: '" + path.string() + "' is refused: " + error.what());
  }
}

TUTTI_INLINE void write_json(const std::filesystem::path& path, const tutti::detail::Json& value) {
  const std::string text = tutti::detail::to_text(value, 2) + '\n';
  detail::File file = detail::File::create(path);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
}

}  // namespace tutti::checkpoint

#endif
