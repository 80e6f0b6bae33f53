// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tutti {

/// In what wall-clock times are logged.
enum class ClockUnit : std::uint8_t { seconds, minutes, hours, days };

/// "seconds", "minutes", "hours", "days".
constexpr std::string_view to_string(ClockUnit unit) {
  constexpr std::string_view names[] = {"seconds", "minutes", "hours", "days"};
  return names[static_cast<std::size_t>(unit)];
}

namespace detail {

/// How many seconds the unit has.
constexpr double seconds_in(ClockUnit unit) {
  constexpr double seconds[] = {1, 60, 60 * 60, 24 * 60 * 60};
  return seconds[static_cast<std::size_t>(unit)];
}

constexpr double to_seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace detail

}  // namespace tutti
