// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>

#include <cstdint>
#include <limits>
#include <string_view>

/// Reads time strings such as "10ep", "0.5dur" and "1h30m", at compile time or at run time.

namespace tutti {

/// What a Time counts.
enum class TimeUnit : std::uint8_t {
  iteration,  ///< "iter": a user-defined span of epochs or tokens
  epoch,      ///< "ep"
  batch,      ///< "ba": optimizer steps
  sample,     ///< "sp": over all processes
  token,      ///< "tok": over all processes
  duration,   ///< "dur": a fraction of the run; the one unit that is not a whole number
  second,     ///< "sec"
};

/// The unit as it is written behind a number: "ep" for TimeUnit::epoch.
constexpr std::string_view to_string(TimeUnit unit) noexcept {
  constexpr std::string_view text[] = {"iter", "ep", "ba", "sp", "tok", "dur", "sec"};
  return text[static_cast<std::size_t>(unit)];
}

namespace detail {

enum class TimeProblem : std::uint8_t { none, empty, number, unit, missing_unit, whole, large };

struct ParsedTime {
  TimeUnit unit = TimeUnit::epoch;
  std::int64_t count = 0;  // every unit but duration
  double fraction = 0.0;   // duration
  TimeProblem problem = TimeProblem::none;
};

constexpr bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

constexpr std::string_view strip(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && is_blank(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

constexpr bool equals_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (to_lower(a[i]) != to_lower(b[i])) {
      return false;
    }
  }
  return true;
}

/// mantissa * 10^exponent, as written.
struct Decimal {
  bool negative = false;
  bool truncated = false;  // non-zero digits beyond the 19 that fit were dropped
  std::uint64_t mantissa = 0;
  int exponent = 0;

  constexpr void push(int digit, bool after_point) {
    if (mantissa <= (std::numeric_limits<std::uint64_t>::max() - 9) / 10) {
      mantissa = mantissa * 10 + static_cast<std::uint64_t>(digit);
      exponent -= after_point ? 1 : 0;
    } else {
      truncated = truncated || digit != 0;
      exponent += after_point ? 0 : 1;
    }
  }
};

/// Takes digits with single underscores between them off the front of `text`; how many, or -1 when
/// an underscore stands elsewhere.
template <class Push>
constexpr int take_digits(std::string_view& text, Push push) {
  int digits = 0;
  while (!text.empty() && (is_digit(text.front()) || (digits > 0 && text.front() == '_'))) {
    if (text.front() == '_') {
      if (text.size() < 2 || !is_digit(text[1])) {
        return -1;
      }
    } else {
      push(text.front() - '0');
      ++digits;
    }
    text.remove_prefix(1);
  }
  return digits;
}

constexpr bool take_sign(std::string_view& text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    text.remove_prefix(1);
  }
  return negative;
}

/// Takes a number in floating-point syntax off the front of `text`; false when there is none.
constexpr bool take_decimal(std::string_view& text, Decimal& out) {
  out.negative = take_sign(text);
  const int before = take_digits(text, [&](int digit) { out.push(digit, false); });
  int after = 0;
  if (before >= 0 && !text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    after = take_digits(text, [&](int digit) { out.push(digit, true); });
  }
  if (before < 0 || after < 0 || before + after == 0) {
    return false;
  }
  // "1e3ba" has an exponent, "1ep" has a unit: a digit must follow the e and its sign.
  if (!text.empty() && to_lower(text.front()) == 'e') {
    std::string_view rest = text.substr(1);
    const bool negative = take_sign(rest);
    int exponent = 0;
    const int digits = take_digits(
        rest, [&](int digit) { exponent = exponent < 100'000 ? exponent * 10 + digit : exponent; });
    if (digits < 0) {
      return false;
    }
    if (digits > 0) {
      out.exponent += negative ? -exponent : exponent;
      text = rest;
    }
  }
  return true;
}

constexpr TimeProblem to_count(Decimal number, std::int64_t& out) {
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (number.mantissa == 0) {
    return TimeProblem::none;
  }
  if (number.truncated) {
    return number.exponent < 0 ? TimeProblem::whole : TimeProblem::large;
  }
  for (; number.exponent < 0 && number.mantissa % 10 == 0; ++number.exponent) {
    number.mantissa /= 10;
  }
  if (number.exponent < 0) {
    return TimeProblem::whole;
  }
  for (; number.exponent > 0 && number.mantissa <= max / 10; --number.exponent) {
    number.mantissa *= 10;
  }
  if (number.exponent > 0 || number.mantissa > max) {
    return TimeProblem::large;
  }
  const auto count = static_cast<std::int64_t>(number.mantissa);
  out = number.negative ? -count : count;
  return TimeProblem::none;
}

/// Correctly rounded for the digits that a double needs to be written down and read back.
constexpr TimeProblem to_fraction(const Decimal& number, double& out) {
  const int magnitude = number.exponent < 0 ? -number.exponent : number.exponent;
  long double value = static_cast<long double>(number.mantissa);
  if (number.mantissa != 0 && number.exponent > 400) {
    return TimeProblem::large;
  }
  long double power = 1;
  for (int i = 0; i < magnitude && i < 400; ++i) {
    power *= 10;
  }
  if (magnitude <= 22 && number.mantissa <= (1ULL << 53U)) {  // both exact in a double
    const auto exact = static_cast<double>(number.mantissa);
    const auto scale = static_cast<double>(power);
    value = static_cast<long double>(number.exponent < 0 ? exact / scale : exact * scale);
  } else {
    value = number.exponent < 0 ? value / power : value * power;
  }
  if (value > static_cast<long double>(std::numeric_limits<double>::max())) {
    return TimeProblem::large;
  }
  out = number.negative ? -static_cast<double>(value) : static_cast<double>(value);
  return TimeProblem::none;
}

/// "<h>h<m>m<s>s", each field optional, in this order, of any magnitude. False when `text` is not
/// of this form.
constexpr bool parse_clock(std::string_view text, ParsedTime& out) {
  constexpr std::int64_t seconds[] = {3600, 60, 1};
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 3600 / 4;
  std::int64_t total = 0;
  bool large = false;
  for (std::size_t field = 0; field < 3; ++field) {
    std::string_view rest = text;
    std::int64_t value = 0;
    while (!rest.empty() && is_digit(rest.front())) {
      large = large || value > limit / 10 - 1;
      value = large ? 0 : value * 10 + (rest.front() - '0');
      rest.remove_prefix(1);
    }
    if (rest.size() < text.size() && !rest.empty() && to_lower(rest.front()) == "hms"[field]) {
      total += value * seconds[field];
      text = rest.substr(1);
    }
  }
  out = {TimeUnit::second, total, 0.0, large ? TimeProblem::large : TimeProblem::none};
  return text.empty();
}

constexpr ParsedTime parse_time(std::string_view text) {
  text = strip(text);
  ParsedTime out;
  if (text.empty()) {
    out.problem = TimeProblem::empty;
    return out;
  }
  if (parse_clock(text, out)) {
    return out;
  }
  out = {};
  Decimal number;
  if (!take_decimal(text, number)) {
    out.problem = TimeProblem::number;
    return out;
  }
  text = strip(text);
  out.problem = text.empty() ? TimeProblem::missing_unit : TimeProblem::unit;
  for (int i = 0; i <= static_cast<int>(TimeUnit::second); ++i) {
    const auto unit = static_cast<TimeUnit>(i);
    if (equals_ignoring_case(text, to_string(unit))) {
      out.unit = unit;
      out.problem = unit == TimeUnit::duration ? to_fraction(number, out.fraction)
                                               : to_count(number, out.count);
    }
  }
  return out;
}

}  // namespace detail
}  // namespace tutti
