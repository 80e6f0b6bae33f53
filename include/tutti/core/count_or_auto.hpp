// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include <tutti/core/validate.hpp>

namespace tutti {

/// A number, or "auto". Whoever is given one checks the number's range.
struct CountOrAuto {
  std::int64_t count = 0;
  bool automatic = false;

  constexpr CountOrAuto() = default;
  template <std::integral I>
  constexpr CountOrAuto(I number)  // NOLINT: converts by design
      : count(static_cast<std::int64_t>(number)) {}
  /// Throws c10::ValueError for any text but "auto".
  constexpr CountOrAuto(const char* text) : automatic(std::string_view(text) == "auto") {  // NOLINT
    expect(automatic, "the text", text, "\"auto\", or a number without quotes");
  }

  friend constexpr bool operator==(const CountOrAuto&, const CountOrAuto&) = default;
};

}  // namespace tutti
