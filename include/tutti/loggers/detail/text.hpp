// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/time_value.hpp>

namespace tutti::detail {

// Four decimals, whole numbers without; four significant digits and an exponent where decimals
// would hide a small or a large number.
std::string number_text(double value);

std::string hyperparameter_text(const HyperparameterValue& value);

// Hyperparameters in the order in which they came.
using Config = std::vector<std::pair<std::string, HyperparameterValue>>;

void remember(Config& config, std::span<const Hyperparameter> values);

// {"columns": [...], "data": [[...], ...]}
std::string table_text(const LoggedTable& table);

constexpr std::string_view unit_word(TimeUnit unit) {
  constexpr std::string_view words[] = {"iteration", "epoch",    "batch", "sample",
                                        "token",     "duration", "second"};
  return words[static_cast<std::size_t>(unit)];
}

// "02:05", "1:02:05".
std::string clock_text(double seconds);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string number_text(double value) {
  if (std::isnan(value)) {
    return "nan";  // without its sign, which means nothing
  }
  char text[64];
  const double size = std::abs(value);
  if (value == std::floor(value) && size < 1e15) {
    std::snprintf(text, sizeof text, "%.0f", value);
  } else if (std::isfinite(value) && (size < 1e-3 || size >= 1e15)) {
    std::snprintf(text, sizeof text, "%.3e", value);
  } else {
    std::snprintf(text, sizeof text, "%.4f", value);
  }
  return text;
}

TUTTI_INLINE std::string hyperparameter_text(const HyperparameterValue& value) {
  return value.visit([](const auto& v) -> std::string {
    using T = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<T, bool>) {
      return v ? "true" : "false";
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return std::to_string(v);
    } else if constexpr (std::is_same_v<T, double>) {
      char text[32];
      std::snprintf(text, sizeof text, "%.10g", v);
      return std::isnan(v) ? "nan" : text;
    } else {
      return v;
    }
  });
}

TUTTI_INLINE void remember(Config& config, std::span<const Hyperparameter> values) {
  for (const Hyperparameter& value : values) {
    bool known = false;
    for (auto& [name, old] : config) {
      if (name == value.name) {
        old = value.value;
        known = true;
      }
    }
    if (!known) {
      config.emplace_back(value.name, value.value);
    }
  }
}

TUTTI_INLINE std::string table_text(const LoggedTable& table) {
  const auto list = [](const auto& cells) {
    std::string text;
    for (const std::string& cell : cells) {
      text += (text.empty() ? "" : ", ") + json_quoted(cell);
    }
    return "[" + text + "]";
  };
  std::string rows;
  for (const auto& row : table.rows) {
    rows += (rows.empty() ? "" : ", ") + list(row);
  }
  return "{\"columns\": " + list(table.columns) + ", \"data\": [" + rows + "]}";
}

TUTTI_INLINE std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds >= 1e9) {
    return "?";
  }
  const auto whole = static_cast<std::int64_t>(seconds);
  char text[32];
  const auto hours = static_cast<int>(whole / 3600);
  const auto minutes = static_cast<int>(whole / 60 % 60);
  const auto rest = static_cast<int>(whole % 60);
  if (hours > 0) {
    std::snprintf(text, sizeof text, "%d:%02d:%02d", hours, minutes, rest);
  } else {
    std::snprintf(text, sizeof text, "%02d:%02d", minutes, rest);
  }
  return text;
}

}  // namespace tutti::detail

#endif
