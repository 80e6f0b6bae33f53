// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string_view>

#include <tutti/core/validate.hpp>

namespace tutti {

/// On, off, or "auto": on where it can be.
struct OnOrAuto {
  bool on = false;
  bool automatic = false;

  constexpr OnOrAuto() = default;
  template <std::same_as<bool> B>
  constexpr OnOrAuto(B yes)  // NOLINT: converts by design
      : on(yes) {}
  /// Throws c10::ValueError for any text but "auto".
  constexpr OnOrAuto(const char* text) : automatic(std::string_view(text) == "auto") {  // NOLINT
    expect(automatic, "the text", text, "\"auto\", or true or false without quotes");
  }

  /// It is wanted, for certain or where it can be.
  constexpr explicit operator bool() const { return on || automatic; }

  friend constexpr bool operator==(const OnOrAuto&, const OnOrAuto&) = default;
};

/// "true", "false", "auto".
constexpr std::string_view to_string(const OnOrAuto& value) {
  return value.automatic ? "auto" : value.on ? "true" : "false";
}

}  // namespace tutti
