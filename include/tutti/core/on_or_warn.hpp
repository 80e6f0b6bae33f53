// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string_view>

#include <tutti/core/validate.hpp>

namespace tutti {

/// On, off, or "warn": on, but what cannot be done is warned of, not refused.
struct OnOrWarn {
  bool on = false;
  bool warns = false;

  constexpr OnOrWarn() = default;
  template <std::same_as<bool> B>
  constexpr OnOrWarn(B yes)  // NOLINT: converts by design
      : on(yes) {}
  /// Throws c10::ValueError for any text but "warn".
  constexpr OnOrWarn(const char* text)
      : on(true), warns(std::string_view(text) == "warn") {  // NOLINT
    expect(warns, "the text", text, "\"warn\", or true or false without quotes");
  }

  constexpr explicit operator bool() const { return on; }

  friend constexpr bool operator==(const OnOrWarn&, const OnOrWarn&) = default;
};

/// "true", "false", "warn".
constexpr std::string_view to_string(const OnOrWarn& value) {
  return value.warns ? "warn" : value.on ? "true" : "false";
}

}  // namespace tutti
