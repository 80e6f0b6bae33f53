// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time_value.hpp>

namespace tutti {

TUTTI_INLINE std::string to_string(Time time) {
  char text[40];
  char* end = nullptr;
  if (time.is_fraction()) {
    const double x = time.value() < 0 ? -time.value() : time.value();
    const bool fixed = x == 0 || (x >= 1e-4 && x < 1e16);
    end = std::to_chars(text, text + sizeof text, time.value(),
                        fixed ? std::chars_format::fixed : std::chars_format::scientific)
              .ptr;
    if (fixed && std::string_view(text, end).find('.') == std::string_view::npos) {
      *end++ = '.';
      *end++ = '0';
    }
  } else {
    end = std::to_chars(text, text + sizeof text, time.count()).ptr;
  }
  return std::string(text, end).append(to_string(time.unit()));
}

}  // namespace tutti

namespace tutti::detail {

TUTTI_INLINE void time_units_differ(const char* operation, Time left, Time right) {
  throw TimeUnitError(std::string("Time: cannot ") + operation + " " + to_string(left) + " and " +
                      to_string(right) + ": the units are " + std::string(to_string(left.unit())) +
                      " and " + std::string(to_string(right.unit())) +
                      (operation == std::string_view("multiply") ? "; one of them must be dur."
                                                                 : "; they must be the same."));
}

TUTTI_INLINE std::invalid_argument bad_time_text(std::string_view text, TimeProblem problem) {
  constexpr const char* what[] = {"",
                                  "it is empty",
                                  "it does not begin with a number",
                                  "its unit is unknown",
                                  "it has no unit",
                                  "the number is not whole, and only dur takes fractions",
                                  "the number is too large"};
  return std::invalid_argument(
      "Time: cannot read \"" + std::string(text) + "\": " + what[static_cast<int>(problem)] +
      ". Expected <number><unit> with a unit of iter, ep, ba, sp, tok, dur, sec (\"10ep\", "
      "\"0.5dur\") or a wall-clock time (\"1h30m\", \"45s\").");
}

}  // namespace tutti::detail
