// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/time_text.hpp>
#include <tutti/fwd.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

/// The numbers inside a Time, checked, and what goes wrong with them.

namespace tutti {

/// Thrown when two times of different units are added, divided, compared, ...
struct TimeUnitError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {

/// A plain number that a Time may be built from or combined with.
template <class N>
concept TimeNumber = std::floating_point<N> ||
                     (std::integral<N> && !std::same_as<N, bool> && !std::same_as<N, char> &&
                      !std::same_as<N, wchar_t> && !std::same_as<N, char8_t> &&
                      !std::same_as<N, char16_t> && !std::same_as<N, char32_t>);

std::invalid_argument bad_time_text(std::string_view text, TimeProblem problem);

// What a wrong literal throws: not constexpr on purpose, for their names are what a compiler
// prints.
inline std::invalid_argument time_string_is_invalid__expected_like_10ep_0_5dur_1h30m(
    std::string_view text, TimeProblem problem) {
  return bad_time_text(text, problem);
}
inline std::invalid_argument time_string_needs_a_unit__iter_ep_ba_sp_tok_dur_sec_or_h_m_s(
    std::string_view text) {
  return bad_time_text(text, TimeProblem::missing_unit);
}
inline std::invalid_argument time_string_needs_a_whole_number__only_dur_takes_fractions(
    std::string_view text) {
  return bad_time_text(text, TimeProblem::whole);
}

[[noreturn]] void time_units_differ(const char* operation, Time left, Time right);

[[noreturn]] inline void time_value_must_be_whole(double value, TimeUnit unit) {
  throw std::invalid_argument("Time: " + std::to_string(value) + " is not a whole number of " +
                              std::string(to_string(unit)) + "; only dur takes fractions.");
}
[[noreturn]] inline void time_is_out_of_range() {
  throw std::overflow_error("Time: the result does not fit 64 bits.");
}
[[noreturn]] inline void time_is_divided_by_zero() {
  throw std::domain_error("Time: division by zero.");
}

/// Truncates towards zero, as Python's int().
constexpr std::int64_t to_int(double value) {
  if (!(value > -0x1p63 && value < 0x1p63)) {
    time_is_out_of_range();
  }
  return static_cast<std::int64_t>(value);
}

/// a % b without rounding, as std::fmod, which no constant expression can call; it has a's sign.
constexpr double exact_remainder(double a, double b) {
  const double step = b < 0 ? -b : b;
  double rest = a < 0 ? -a : a;
  while (rest >= step) {
    double part = step;
    while (part <= rest - part) {
      part += part;
    }
    rest -= part;
  }
  return a < 0 ? -rest : rest;
}

/// The remainder with the divisor's sign, as Python's %.
template <class N>
constexpr N floor_mod(N a, N b) {
  N rest{};
  if constexpr (std::is_floating_point_v<N>) {
    rest = exact_remainder(a, b);
  } else {
    rest = b == -1 ? 0 : a % b;
  }
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// What a Time stores: the count, or the bits of the double for dur.
template <class N>
constexpr std::int64_t time_bits(N value, TimeUnit unit) {
  if (unit == TimeUnit::duration) {
    const auto fraction = static_cast<double>(value);
    if (!(fraction - fraction == 0.0)) {  // NaN or infinite
      time_value_must_be_whole(fraction, unit);
    }
    return std::bit_cast<std::int64_t>(fraction + 0.0);  // -0 becomes 0
  }
  if constexpr (std::floating_point<N>) {
    const auto number = static_cast<double>(value);
    if (!(number - number == 0.0) || static_cast<double>(to_int(number)) != number) {
      time_value_must_be_whole(number, unit);
    }
    return to_int(number);
  } else {
    if (!std::in_range<std::int64_t>(value)) {
      time_is_out_of_range();
    }
    return static_cast<std::int64_t>(value);
  }
}

constexpr std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? (time_is_out_of_range(), 0) : out;
}
constexpr std::int64_t checked_sub(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_sub_overflow(a, b, &out) ? (time_is_out_of_range(), 0) : out;
}

}  // namespace detail

}  // namespace tutti
