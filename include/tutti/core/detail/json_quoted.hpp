// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <tutti/config.hpp>

namespace tutti::detail {

/// `text` in quotes, with what JSON demands escaped; bytes above 7F pass through.
std::string json_quoted(std::string_view text);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string json_quoted(std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += {'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace tutti::detail

#endif
