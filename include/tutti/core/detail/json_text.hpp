// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_quoted.hpp>

namespace tutti::detail {

/// The shortest text that reads back as the same double; always with a point or an exponent, so
/// that it reads back as a double and not as an integer. Throws std::invalid_argument for NaN and
/// infinities.
std::string json_number(double value);

/// The value as JSON text; `indent` spaces a level, 0 for one line. A number with a text of its own
/// is that.
std::string to_text(const Json& value, int indent = 0);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string json_number(double value) {
  if (!std::isfinite(value)) {
    throw std::invalid_argument("JSON: NaN and infinity have no JSON form");
  }
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

TUTTI_INLINE void append_json(std::string& out, const Json& value, int indent, int depth) {
  const auto new_line = [&](int level) {
    if (indent > 0) {
      out += '\n';
      out.append(static_cast<std::size_t>(indent * level), ' ');
    }
  };
  if (value.is_object() || value.is_array()) {
    const bool named = value.is_object();
    const bool flat = !named || value.size() == 0;  // arrays are short here and stay on one line
    out += named ? '{' : '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      out += i == 0 ? "" : flat && indent > 0 ? ", " : ",";
      if (!flat) {
        new_line(depth + 1);
      }
      if (named) {
        out += json_quoted(value.object()[i].first) + (indent > 0 ? ": " : ":");
      }
      append_json(out, named ? value.object()[i].second : value.array()[i], indent, depth + 1);
    }
    if (!flat) {
      new_line(depth);
    }
    out += named ? '}' : ']';
  } else if (value.is_string()) {
    out += json_quoted(value.string());
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else if (value.is_number()) {
    const std::string_view own = value.number_text();
    out += own.empty() ? json_number(value.number()) : std::string(own);
  } else {
    out += value.is_null() ? "null" : value.boolean() ? "true" : "false";
  }
}

TUTTI_INLINE std::string to_text(const Json& value, int indent) {
  std::string out;
  append_json(out, value, indent, 0);
  return out;
}

}  // namespace tutti::detail

#endif
