// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/core/logger.hpp>

// The lines of JSONLinesLogger's files, which docs/loggers.md describes.

namespace tutti::detail {

// One object and the end of its line. step: left out when negative. more: its other members, each
// after a comma.
std::string json_line(std::string_view type, std::int64_t step, const std::string& more);

// Text in quotes, as UTF-8.
inline std::string json_utf8(std::string_view text) {
  return json_quoted(utf8(text));
}

// json_utf8(), without its copies for the names that metrics have as a rule.
void append_json_name(std::string& text, std::string_view word);

// NaN and infinities are the strings "NaN", "Infinity", "-Infinity".
void append_json_value(std::string& text, double value);
void append_json_value(std::string& text, const HyperparameterValue& value);

// What stands in the braces of metrics or of hyperparameters.
void append_json_metrics(std::string& members, std::span<const LoggedMetric> metrics);
std::string json_members(std::span<const Hyperparameter> values);

std::string json_list(std::span<const std::string> cells);

std::string json_line(const LoggedTable& table, std::int64_t step);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string json_line(std::string_view type, std::int64_t step,
                                   const std::string& more) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::string thousandths = std::to_string(1000 + ms % 1000).substr(1);
  std::string text = "{\"type\": " + json_utf8(type);
  text += step < 0 ? "" : ", \"step\": " + std::to_string(step);
  text += ", \"time\": " + std::to_string(ms / 1000) + "." + thousandths;
  return text + more + "}\n";
}

TUTTI_INLINE void append_json_name(std::string& text, std::string_view word) {
  bool plain = true;
  for (const char c : word) {
    plain = plain && c >= ' ' && c <= '~' && c != '"' && c != '\\';
  }
  if (plain) {
    text.append("\"").append(word).append("\"");
  } else {
    text += json_utf8(word);
  }
}

TUTTI_INLINE void append_json_value(std::string& text, double value) {
  std::array<char, 32> digits{};
  if (std::isfinite(value)) {
    text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
  } else {
    text += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  }
}

TUTTI_INLINE void append_json_value(std::string& text, const HyperparameterValue& value) {
  value.visit([&](const auto& v) {
    using T = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<T, bool>) {
      text += v ? "true" : "false";
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      text += std::to_string(v);
    } else if constexpr (std::is_same_v<T, double>) {
      append_json_value(text, v);
    } else {
      text += json_utf8(v);
    }
  });
}

TUTTI_INLINE void append_json_metrics(std::string& members, std::span<const LoggedMetric> metrics) {
  for (const LoggedMetric& metric : metrics) {
    members += members.empty() ? "" : ", ";
    append_json_name(members, metric.name);
    members += ": ";
    append_json_value(members, metric.value);
  }
}

TUTTI_INLINE std::string json_members(std::span<const Hyperparameter> values) {
  std::string text;
  for (const Hyperparameter& value : values) {
    text += (text.empty() ? "" : ", ") + json_utf8(value.name) + ": ";
    append_json_value(text, value.value);
  }
  return text;
}

TUTTI_INLINE std::string json_list(std::span<const std::string> cells) {
  std::string text;
  for (const std::string& cell : cells) {
    text += (text.empty() ? "" : ", ") + json_utf8(cell);
  }
  return "[" + text + "]";
}

TUTTI_INLINE std::string json_line(const LoggedTable& table, std::int64_t step) {
  std::string rows;
  for (const auto& row : table.rows) {
    rows += (rows.empty() ? "" : ", ") + json_list(row);
  }
  return json_line("table", step,
                   ", \"name\": " + json_utf8(table.name) +
                       ", \"columns\": " + json_list(table.columns) + ", \"rows\": [" + rows + "]");
}

}  // namespace tutti::detail

#endif
