// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_text.hpp>

/// `tutti-sweep`, which runs a program with many values of its flags.
namespace tutti::sweep {

/// The flags of one trial: names without dashes and scalars, in the order of the file.
using Flags = tutti::detail::Json::Object;

/// A scalar as a program reads it behind `--flag=`: a text as it is, the shortest number that reads
/// back unchanged, true or false.
inline std::string flag_text(const tutti::detail::Json& value) {
  if (value.is_string()) {
    return value.string();
  }
  if (value.is_number() && !value.is_int()) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.begin(), digits.end(), value.number()).ptr};
  }
  return tutti::detail::to_text(value);
}

namespace detail {

using tutti::detail::Json;

inline void refuse_unless(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument("tutti-sweep: " + what);
  }
}

// Uniform in [0, 1): the same for the same four on every machine.
inline double uniform(std::uint64_t seed, std::uint64_t trial, std::uint64_t attempt,
                      std::string_view name) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  for (const std::uint64_t next : {seed, trial, attempt}) {  // SplitMix64
    hash += 0x9E3779B97F4A7C15ULL * (next + 1);
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9ULL;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBULL;
    hash ^= hash >> 31;
  }
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

// Six digits are what a flag needs, and what is drawn alike where exp() differs in its last bit.
inline double rounded(double value) {
  std::array<char, 32> text{};
  const int size = std::snprintf(text.data(), text.size(), "%.6g", value);
  std::from_chars(text.data(), text.data() + size, value);
  return value;
}

}  // namespace detail

/// What one flag may be.
struct Range {
  enum class Kind { choice, uniform, log_uniform, integer, log_integer };
  Kind kind = Kind::choice;
  std::vector<tutti::detail::Json> choices{};  ///< scalars; of choice
  double low = 0;                              ///< of the others, both ends included
  double high = 0;
  double step = 0;          ///< distance of values from low on; 0: none
  std::int64_t points = 0;  ///< that a grid has of it; 0: those of `step`

  /// The values of a grid, in order. Throws std::invalid_argument for a range without end.
  [[nodiscard]] std::vector<tutti::detail::Json> values(const std::string& name) const;

  /// How many there are to draw; nullopt: no end of them.
  [[nodiscard]] std::optional<double> count() const {
    if (kind == Kind::choice) {
      return static_cast<double>(choices.size());
    }
    if (kind == Kind::uniform && step == 0) {
      return std::nullopt;
    }
    return kind == Kind::log_uniform ? std::nullopt : std::optional(steps());
  }

  /// The value at a place of [0, 1) in the distribution.
  [[nodiscard]] tutti::detail::Json at(double place) const;

 private:
  [[nodiscard]] double steps() const {  // of whole numbers or of `step`; with room for rounding
    return std::floor((high - low) / (step == 0 ? 1 : step) + 1e-9) + 1;
  }
  [[nodiscard]] tutti::detail::Json value(double number) const {
    number = std::clamp(number, low, high);
    if (kind == Kind::integer || kind == Kind::log_integer) {
      return static_cast<std::int64_t>(std::llround(number));
    }
    return std::clamp(detail::rounded(number), low, high);
  }
};

/// The flags that a sweep varies, each with its range.
class Space {
 public:
  static constexpr std::size_t most_points = 100'000;  ///< of a grid

  Space() = default;

  /// flags: a scalar, a list of scalars, or a table: {uniform = [low, high]}, log_uniform, int or
  /// log_int likewise, {choice = [...]}; with step for uniform and int, with points for a grid.
  /// Throws std::invalid_argument naming the flag and what is wrong.
  explicit Space(const tutti::detail::Json& flags);

  /// Whether there is a flag of that name.
  [[nodiscard]] bool contains(std::string_view name) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const auto& one) { return one.first == name; });
  }

  /// All combinations, the last flag changing fastest.
  /// Throws std::invalid_argument when a range has no end or there are more than most_points.
  [[nodiscard]] std::vector<Flags> grid() const;

  /// `count` different combinations, drawn. The first ones are the same whatever `count` is, and a
  /// flag's values do not depend on the other flags unless a combination is drawn twice.
  /// Throws std::invalid_argument when there are fewer than `count`.
  [[nodiscard]] std::vector<Flags> draw(std::uint64_t seed, std::int64_t count) const;

 private:
  std::vector<std::pair<std::string, Range>> ranges_;
};

namespace detail {

inline bool is_scalar(const Json& value) {
  return value.is_string() || value.is_number() || value.is_bool();
}

inline std::vector<Json> choices_of(const std::string& name, const Json& list) {
  refuse_unless(list.is_array() && list.size() > 0,
                "the flag " + name + " has an empty list of values; give it one or more");
  std::set<std::string> seen;
  for (const Json& value : list.array()) {
    refuse_unless(is_scalar(value), "the flag " + name + " has " + std::string(value.kind()) +
                                        " among its values, expected numbers, texts, true or "
                                        "false");
    refuse_unless(seen.insert(flag_text(value)).second,
                  "the flag " + name + " has the value " + flag_text(value) + " twice");
  }
  return list.array();
}

inline Range range_of(const std::string& name, const Json& table) {
  using Kind = Range::Kind;
  constexpr std::array<std::pair<std::string_view, Kind>, 5> kinds{
      {{"choice", Kind::choice},
       {"uniform", Kind::uniform},
       {"log_uniform", Kind::log_uniform},
       {"int", Kind::integer},
       {"log_int", Kind::log_integer}}};
  Range range;
  const Json* ends = nullptr;
  for (const auto& [key, value] : table.object()) {
    const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                   [&key = key](const auto& one) { return one.first == key; });
    if (kind != kinds.end()) {
      refuse_unless(ends == nullptr, "the flag " + name + " has two kinds of range, expected one");
      range.kind = kind->second;
      ends = &value;
    } else if (key == "step") {
      refuse_unless(value.is_number() && value.number() > 0,
                    "step of the flag " + name + " has to be a number above 0");
      range.step = value.number();
    } else {
      refuse_unless(key == "points", "the flag " + name + " has a \"" + key +
                                         "\", expected one of choice, uniform, log_uniform, int, "
                                         "log_int, and step or points");
      refuse_unless(value.is_int() && value.integer() >= 2 && value.integer() <= 100'000,
                    "points of the flag " + name + " has to be a whole number from 2 to 100000");
      range.points = value.integer();
    }
  }
  refuse_unless(ends != nullptr, "the flag " + name +
                                     " has no range; write for instance {uniform = [0, 1]}, or a "
                                     "list of values");
  if (range.kind == Kind::choice) {
    refuse_unless(range.step == 0 && range.points == 0,
                  "the flag " + name + " is a choice, which has neither step nor points");
    range.choices = choices_of(name, *ends);
    return range;
  }
  const bool whole = range.kind == Kind::integer || range.kind == Kind::log_integer;
  const bool log = range.kind == Kind::log_uniform || range.kind == Kind::log_integer;
  const auto good = [whole](const Json& end) { return whole ? end.is_int() : end.is_number(); };
  refuse_unless(ends->is_array() && ends->size() == 2 && good((*ends)[0]) && good((*ends)[1]),
                "the range of the flag " + name + " has to be [low, high], two " +
                    (whole ? "whole numbers" : "numbers"));
  range.low = (*ends)[0].number();
  range.high = (*ends)[1].number();
  const std::string shown = flag_text((*ends)[0]) + " to " + flag_text((*ends)[1]);
  refuse_unless(range.low < range.high, "the range of the flag " + name + " is empty: " + shown +
                                            "; the first number has to be the smaller one");
  refuse_unless(!log || range.low > 0, "the range of the flag " + name + " is " + shown +
                                           " on a log scale, where there is no 0 and nothing "
                                           "below it; begin above 0, or take " +
                                           (whole ? "int" : "uniform"));
  refuse_unless(
      !whole || (range.low > -0x1p53 && range.high < 0x1p53),
      "the range of the flag " + name + " is " + shown + ", which is wider than -2^53 to 2^53");
  refuse_unless(std::isfinite(range.high - range.low),
                "the range of the flag " + name + " is " + shown + ", which is too wide");
  refuse_unless(!log || range.step == 0, "the flag " + name +
                                             " has a step on a log scale; take it out, or take " +
                                             (whole ? "int" : "uniform"));
  refuse_unless(range.step <= range.high - range.low,
                "step of the flag " + name + " is larger than its range, " + shown);
  refuse_unless(!whole || range.step == std::floor(range.step),
                "step of the flag " + name + " has to be a whole number, as the range is");
  refuse_unless(range.step == 0 || range.points == 0,
                "the flag " + name + " has step and points, expected one of them");
  return range;
}

}  // namespace detail

inline std::vector<tutti::detail::Json> Range::values(const std::string& name) const {
  if (kind == Kind::choice) {
    return choices;
  }
  const bool log = kind == Kind::log_uniform || kind == Kind::log_integer;
  const bool by_step = points == 0 && (step > 0 || kind == Kind::integer);
  detail::refuse_unless(by_step || points > 0,
                        "a grid needs to know how many values the flag " + name +
                            " has; write points = 5 beside its range, or a list of values");
  const double count = by_step ? steps() : static_cast<double>(points);
  detail::refuse_unless(count <= static_cast<double>(Space::most_points),
                        "the flag " + name + " has more than " +
                            std::to_string(Space::most_points) +
                            " values, too many for a grid; write points = 5 beside its range");
  std::vector<tutti::detail::Json> out;
  for (double i = 0; i < count; ++i) {
    const double share = i / (count - 1);
    const double number = by_step ? low + i * (step == 0 ? 1 : step)
                          : log   ? low * std::pow(high / low, share)
                                  : low + (high - low) * share;
    tutti::detail::Json next = value(number);
    if (out.empty() || out.back() != next) {  // whole numbers, of which there are fewer
      out.push_back(std::move(next));
    }
  }
  return out;
}

inline tutti::detail::Json Range::at(double place) const {
  const auto among = [place](double count) {
    return std::min(std::floor(place * count), count - 1);
  };
  switch (kind) {
    case Kind::choice:
      return choices[static_cast<std::size_t>(among(static_cast<double>(choices.size())))];
    case Kind::log_uniform:
      return value(std::exp(std::log(low) + place * (std::log(high) - std::log(low))));
    case Kind::log_integer: {  // each whole number has the room around it
      const double first = std::log(low - 0.5);
      return value(std::round(std::exp(first + place * (std::log(high + 0.5) - first))));
    }
    default:
      return step == 0 && kind == Kind::uniform
                 ? value(low + place * (high - low))
                 : value(low + among(steps()) * (step == 0 ? 1 : step));
  }
}

inline Space::Space(const tutti::detail::Json& flags) {
  for (const auto& [name, value] : flags.object()) {
    const bool plain = name.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
                           std::string::npos &&
                       !name.empty() && name.front() != '-';
    detail::refuse_unless(plain, "the flag \"" + name + "\" is named wrong; write lr for --lr");
    Range range;
    if (value.is_object()) {
      range = detail::range_of(name, value);
    } else {
      range.choices = value.is_array() ? detail::choices_of(name, value)
                                       : std::vector<tutti::detail::Json>{value};
    }
    ranges_.emplace_back(name, std::move(range));
  }
  detail::refuse_unless(!ranges_.empty(),
                        "there are no flags to try; write a table [flags] with one or more");
}

inline std::vector<Flags> Space::grid() const {
  std::vector<Flags> out{{}};
  for (const auto& [name, range] : ranges_) {
    const std::vector<tutti::detail::Json> values = range.values(name);
    detail::refuse_unless(values.size() <= most_points / out.size(),
                          "the grid has more than " + std::to_string(most_points) +
                              " combinations; take fewer values, or method = \"random\"");
    std::vector<Flags> next;
    for (const Flags& flags : out) {
      for (const tutti::detail::Json& value : values) {
        next.push_back(flags);
        next.back().emplace_back(name, value);
      }
    }
    out = std::move(next);
  }
  return out;
}

inline std::vector<Flags> Space::draw(std::uint64_t seed, std::int64_t count) const {
  std::optional<double> all = 1;
  for (const auto& [name, range] : ranges_) {
    const auto some = range.count();
    all = all && some ? std::optional(*all * *some) : std::nullopt;
  }
  const auto refuse = [&](double left) {
    detail::refuse_unless(left >= static_cast<double>(count),
                          "there are " + tutti::detail::to_text(static_cast<std::int64_t>(left)) +
                              " combinations of the flags, fewer than trials = " +
                              std::to_string(count) + "; take method = \"grid\" to try them all");
  };
  if (all && *all < 0x1p53) {
    refuse(*all);
  }
  std::vector<Flags> out;
  std::set<std::string> seen;
  for (std::int64_t trial = 0; trial < count; ++trial) {
    bool is_new = false;
    for (std::uint64_t attempt = 0; !is_new; ++attempt) {
      // So many draws without a new value: rounding has left fewer values than were expected.
      detail::refuse_unless(attempt < 10'000 + 20 * out.size(),
                            "the flags have hardly more than " + std::to_string(trial) +
                                " combinations; take fewer trials, or method = "
                                "\"grid\" to try them all");
      Flags flags;
      for (const auto& [name, range] : ranges_) {
        flags.emplace_back(name, range.at(detail::uniform(seed, static_cast<std::uint64_t>(trial),
                                                          attempt, name)));
      }
      is_new = seen.insert(tutti::detail::to_text(flags)).second;
      if (is_new) {
        out.push_back(std::move(flags));
      }
    }
  }
  return out;
}

}  // namespace tutti::sweep
