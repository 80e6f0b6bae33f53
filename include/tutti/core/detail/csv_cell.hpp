// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::detail {

/// A text as one cell of a CSV file: in quotes where it needs them (RFC 4180).
inline std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return out + '"';
}

}  // namespace tutti::detail
