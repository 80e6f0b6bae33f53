// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/time_text.hpp>
#include <tutti/fwd.hpp>

#include <bit>
#include <charconv>
#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

// The numbers inside a Time, checked, and what goes wrong with them.

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

namespace tutti {

class Time;
std::string to_string(Time time);

inline namespace literals {
consteval Time operator""_t(const char* text, std::size_t size);
}

/// A span or a point of training: a number and what it counts, e.g. 10 epochs or half of the run.
///
/// Written as a string: `Time t = "10ep"`, `"0.5dur"_t`; a wrong literal does not compile. Strings
/// known at run time go through `Time::parse`. A plain integer means epochs. What is accepted
/// (blanks around and letter case are ignored):
/// - `<number><unit>`: unit one of iter, ep, ba, sp, tok, dur, sec; number in floating-point syntax
///   with optional digit groups (`3e10sp`, `4_000tok`, `.5dur`), whole unless the unit is dur;
/// - `<h>h<m>m<s>s`, each field optional: a wall-clock time in seconds (`1h30m`, `90m`, `45s`).
///
/// Arithmetic and comparison need equal units and throw TimeUnitError otherwise; in a constant
/// expression a mismatch does not compile. A plain number beside a Time takes the Time's unit.
/// The default, 0ep, stands for "not set" or "never" in options, and converts to false.
///
/// Differences from the reference: a wall-clock field must name its letter and may have any size
/// (there "5" is 50 s, "" is 0 s, "1h5" is 3650 s, and "90m" and "24h" are refused); a trailing
/// blank is ignored as a leading one is; "nandur" is refused, since every comparison with it would
/// be false and whatever waits for it would never run.
/// Source: MosaicML Composer, `composer.core.Time`.
class Time {
  // Ahead of its uses: Clang 14 evaluates a member template only below its definition.
  template <class N>
  constexpr Time scaled(N factor) const {
    if (is_fraction()) {
      return duration(value() * static_cast<double>(factor));
    }
    if constexpr (std::integral<N>) {
      std::int64_t out = 0;
      if (__builtin_mul_overflow(bits_, factor, &out)) {
        detail::time_is_out_of_range();
      }
      return {out, unit_};
    } else {
      return {detail::to_int(value() * static_cast<double>(factor)), unit_};
    }
  }

 public:
  /// 0ep: "not set".
  constexpr Time() noexcept = default;

  /// `epochs` epochs. Throws std::overflow_error when it does not fit 64 bits.
  template <detail::TimeNumber N>
    requires std::integral<N>
  constexpr Time(N epochs) : Time(epochs, TimeUnit::epoch) {}

  /// A string literal, checked by the compiler.
  template <std::size_t N>
  consteval Time(const char (&literal)[N]) {  // NOLINT(*-avoid-c-arrays): only literals match
    const std::string_view text(literal, N - 1);
    const detail::ParsedTime parsed = detail::parse_time(text);
    if (parsed.problem == detail::TimeProblem::missing_unit) {
      throw detail::time_string_needs_a_unit__iter_ep_ba_sp_tok_dur_sec_or_h_m_s(text);
    }
    if (parsed.problem == detail::TimeProblem::whole) {
      throw detail::time_string_needs_a_whole_number__only_dur_takes_fractions(text);
    }
    if (parsed.problem != detail::TimeProblem::none) {
      throw detail::time_string_is_invalid__expected_like_10ep_0_5dur_1h30m(text, parsed.problem);
    }
    *this = from(parsed);
  }

  /// `value` of `unit`. Throws std::invalid_argument for a fractional value unless `unit` is
  /// duration, and for one that is not finite.
  template <detail::TimeNumber N>
  constexpr Time(N value, TimeUnit unit) : bits_(detail::time_bits(value, unit)), unit_(unit) {}

  static constexpr Time iterations(std::int64_t n) { return {n, TimeUnit::iteration}; }
  static constexpr Time epochs(std::int64_t n) { return {n, TimeUnit::epoch}; }
  static constexpr Time batches(std::int64_t n) { return {n, TimeUnit::batch}; }
  static constexpr Time samples(std::int64_t n) { return {n, TimeUnit::sample}; }
  static constexpr Time tokens(std::int64_t n) { return {n, TimeUnit::token}; }
  static constexpr Time seconds(std::int64_t n) { return {n, TimeUnit::second}; }
  /// A fraction of the run: 0 its start, 1 its end.
  static constexpr Time duration(double fraction) { return {fraction, TimeUnit::duration}; }

  /// Reads a time string at run time.
  ///
  /// Throws std::invalid_argument with the text, what is wrong with it and what is accepted.
  static constexpr Time parse(std::string_view text) {
    const detail::ParsedTime parsed = detail::parse_time(text);
    if (parsed.problem != detail::TimeProblem::none) {
      throw detail::bad_time_text(text, parsed.problem);
    }
    return from(parsed);
  }

  /// Coerces what a user may give for a time: a Time stays, a string is parsed, a plain number is
  /// counted in `default_unit`.
  static constexpr Time from_input(Time time, TimeUnit) { return time; }
  static constexpr Time from_input(std::string_view text, TimeUnit) { return parse(text); }
  template <detail::TimeNumber N>
  static constexpr Time from_input(N value, TimeUnit default_unit) {
    return {value, default_unit};
  }

  constexpr TimeUnit unit() const noexcept { return unit_; }
  constexpr bool is_fraction() const noexcept { return unit_ == TimeUnit::duration; }

  /// The number as an integer; a fraction is truncated towards zero.
  constexpr std::int64_t count() const {
    return is_fraction() ? detail::to_int(std::bit_cast<double>(bits_)) : bits_;
  }
  /// The number as a double.
  constexpr double value() const noexcept {
    return is_fraction() ? std::bit_cast<double>(bits_) : static_cast<double>(bits_);
  }
  /// False for 0 of any unit, which options read as "not set" or "never".
  constexpr explicit operator bool() const noexcept { return bits_ != 0; }

  friend constexpr Time operator-(Time a) {
    return a.is_fraction() ? duration(-a.value()) : Time(detail::checked_sub(0, a.bits_), a.unit_);
  }
  friend constexpr Time operator+(Time a, Time b) {
    a.need_unit_of("add", b);
    return a.is_fraction() ? duration(a.value() + b.value())
                           : Time(detail::checked_add(a.bits_, b.bits_), a.unit_);
  }
  friend constexpr Time operator-(Time a, Time b) {
    a.need_unit_of("subtract", b);
    return a.is_fraction() ? duration(a.value() - b.value())
                           : Time(detail::checked_sub(a.bits_, b.bits_), a.unit_);
  }
  /// The remainder; it has the divisor's sign.
  friend constexpr Time operator%(Time a, Time b) {
    a.need_unit_of("take the remainder of", b);
    if (!b) {
      detail::time_is_divided_by_zero();
    }
    return a.is_fraction() ? duration(detail::floor_mod(a.value(), b.value()))
                           : Time(detail::floor_mod(a.bits_, b.bits_), a.unit_);
  }
  /// The ratio of two times of one unit, a dur.
  friend constexpr Time operator/(Time a, Time b) {
    a.need_unit_of("divide", b);
    if (!b) {
      detail::time_is_divided_by_zero();
    }
    return duration(a.value() / b.value());
  }
  /// A fraction of a time, truncated to whole units; one of the two must be a dur.
  friend constexpr Time operator*(Time a, Time b) {
    if (!a.is_fraction() && !b.is_fraction()) {
      detail::time_units_differ("multiply", a, b);
    }
    return a.is_fraction() ? b.scaled(a.value()) : a.scaled(b.value());
  }

  template <detail::TimeNumber N>
  friend constexpr Time operator+(Time a, N b) {
    return a + Time(b, a.unit_);
  }
  template <detail::TimeNumber N>
  friend constexpr Time operator+(N a, Time b) {
    return Time(a, b.unit_) + b;
  }
  template <detail::TimeNumber N>
  friend constexpr Time operator-(Time a, N b) {
    return a - Time(b, a.unit_);
  }
  template <detail::TimeNumber N>
  friend constexpr Time operator-(N a, Time b) {
    return Time(a, b.unit_) - b;
  }
  template <detail::TimeNumber N>
  friend constexpr Time operator%(Time a, N b) {
    return a % Time(b, a.unit_);
  }
  /// Keeps the unit and truncates to whole units.
  template <detail::TimeNumber N>
  friend constexpr Time operator*(Time a, N b) {
    return a.scaled(b);
  }
  template <detail::TimeNumber N>
  friend constexpr Time operator*(N a, Time b) {
    return b.scaled(a);
  }
  template <detail::TimeNumber N>
  friend constexpr Time operator/(Time a, N b) {
    if (b == 0) {
      detail::time_is_divided_by_zero();
    }
    if (a.is_fraction()) {
      return duration(a.value() / static_cast<double>(b));
    }
    if constexpr (std::integral<N>) {
      return std::cmp_equal(b, -1) ? -a : Time(a.bits_ / Time(b).bits_, a.unit_);
    } else {
      return {detail::to_int(a.value() / static_cast<double>(b)), a.unit_};
    }
  }
  constexpr Time& operator+=(Time b) { return *this = *this + b; }
  constexpr Time& operator-=(Time b) { return *this = *this - b; }
  template <detail::TimeNumber N>
  constexpr Time& operator+=(N b) {
    return *this = *this + b;
  }
  template <detail::TimeNumber N>
  constexpr Time& operator-=(N b) {
    return *this = *this - b;
  }

  friend constexpr bool operator==(Time a, Time b) { return (a <=> b) == 0; }
  friend constexpr std::strong_ordering operator<=>(Time a, Time b) {
    a.need_unit_of("compare", b);
    if (!a.is_fraction()) {
      return a.bits_ <=> b.bits_;
    }
    return a.value() < b.value()   ? std::strong_ordering::less
           : a.value() > b.value() ? std::strong_ordering::greater
                                   : std::strong_ordering::equal;
  }
  template <detail::TimeNumber N>
  friend constexpr bool operator==(Time a, N b) {
    return a == Time(b, a.unit_);
  }
  template <detail::TimeNumber N>
  friend constexpr std::strong_ordering operator<=>(Time a, N b) {
    return a <=> Time(b, a.unit_);
  }

  // Public only because a template argument needs it (`With<EMA{.half_life = "10ba"}>`).
  std::int64_t bits_ = 0;  // the count; for dur the bits of the double
  TimeUnit unit_ = TimeUnit::epoch;

  // Public because structural types, which With<EMA{...}> needs, have no private members.
  friend consteval Time literals::operator""_t(const char* literal, std::size_t size);

  static constexpr Time from(const detail::ParsedTime& parsed) {
    return parsed.unit == TimeUnit::duration ? duration(parsed.fraction)
                                             : Time(parsed.count, parsed.unit);
  }

  constexpr void need_unit_of(const char* operation, Time other) const {
    if (unit_ != other.unit_) {
      detail::time_units_differ(operation, *this, other);
    }
  }
};

/// "10ep", "0.5dur", "1.0dur", "4840sec": the form that Time::parse reads back unchanged.
std::string to_string(Time time);

namespace detail {

void time_units_differ(const char* operation, Time left, Time right);

std::invalid_argument bad_time_text(std::string_view text, TimeProblem problem);

}  // namespace detail

inline namespace literals {
/// `"10ep"_t`, checked by the compiler. Reads the text itself, as the constructor does, for every
/// call between the literal and the throw makes a compiler's message longer.
consteval Time operator""_t(const char* literal, std::size_t size) {
  const std::string_view text(literal, size);
  const detail::ParsedTime parsed = detail::parse_time(text);
  if (parsed.problem == detail::TimeProblem::missing_unit) {
    throw detail::time_string_needs_a_unit__iter_ep_ba_sp_tok_dur_sec_or_h_m_s(text);
  }
  if (parsed.problem == detail::TimeProblem::whole) {
    throw detail::time_string_needs_a_whole_number__only_dur_takes_fractions(text);
  }
  if (parsed.problem != detail::TimeProblem::none) {
    throw detail::time_string_is_invalid__expected_like_10ep_0_5dur_1h30m(text, parsed.problem);
  }
  return Time::from(parsed);
}
}  // namespace literals

}  // namespace tutti

template <>
struct std::hash<tutti::Time> {
  std::size_t operator()(tutti::Time time) const noexcept {
    return std::hash<std::int64_t>{}(time.bits_) * 31U + static_cast<std::size_t>(time.unit_);
  }
};

#if TUTTI_BODIES
#include <tutti/core/time_value.inl.hpp>
#endif
