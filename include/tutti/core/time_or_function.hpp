// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/time_value.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fwd.hpp>

namespace tutti {

/// When something happens: each time that a time has passed, or whenever a function says so.
///
///     .eval_interval = "500ba"
///     .eval_interval = [](const tutti::State& state, std::string_view event) {
///       return event == tutti::BatchEnd::name && is_wanted(state.timestamp.batch);
///     }
///
/// The function is asked at every event at which the time could be due, and gets that event's name.
/// Every rank asks its own, which have to answer alike: they read what is the same on all ranks,
/// the timestamp and metrics, and no clock.
/// Source: MosaicML Composer, `Union[str, int, Time, Callable[[State, Event], bool]]`.
class TimeOrFunction {
 public:
  using Function = std::function<bool(const State& state, std::string_view event)>;

  /// 0ep: "not set" or "never".
  constexpr TimeOrFunction() noexcept = default;

  constexpr TimeOrFunction(Time every) noexcept : time_(every) {}  // NOLINT: converts by design

  /// Epochs.
  template <std::integral N>
  constexpr TimeOrFunction(N epochs) : time_(epochs) {}  // NOLINT: converts by design

  /// A string literal, checked by the compiler.
  template <std::size_t N>
  consteval TimeOrFunction(const char (&literal)[N]) : time_(literal) {}  // NOLINT: as in Time

  /// Throws c10::ValueError for a std::function that holds none.
  template <class F>
    requires std::is_invocable_r_v<bool, F&, const State&, std::string_view>
  TimeOrFunction(F function)  // NOLINT: converts by design
      : function_(owned(std::move(function))) {}

  // A literal's value is made by the compiler, which takes no std::function as a member.
  constexpr TimeOrFunction(const TimeOrFunction& other)
      : time_(other.time_),
        function_(other.function_ == nullptr ? nullptr : new Function(*other.function_)) {}
  constexpr TimeOrFunction(TimeOrFunction&& other) noexcept
      : time_(other.time_), function_(std::exchange(other.function_, nullptr)) {}
  constexpr TimeOrFunction& operator=(TimeOrFunction other) noexcept {
    std::swap(time_, other.time_);
    std::swap(function_, other.function_);
    return *this;
  }
  constexpr ~TimeOrFunction() { delete function_; }

  /// The time; 0ep where a function decides.
  [[nodiscard]] constexpr Time time() const noexcept { return time_; }

  /// Null where the time decides.
  [[nodiscard]] constexpr const Function* function() const noexcept { return function_; }

  /// False for a time of 0, which is never.
  constexpr explicit operator bool() const noexcept { return function_ != nullptr || bool(time_); }

  /// False beside a function. Throws TimeUnitError for times of other units, as Time does.
  friend constexpr bool operator==(const TimeOrFunction& a, Time time) {
    return a.function_ == nullptr && a.time_ == time;
  }

  /// The time, or "a function".
  friend std::string to_string(const TimeOrFunction& when) {
    return when.function_ != nullptr ? "a function" : to_string(when.time_);
  }

 private:
  static const Function* owned(Function function) {
    expect(static_cast<bool>(function),
           "an interval is an empty function; give it one, or a time like 1ep.");
    return new Function(std::move(function));
  }

  Time time_{};
  const Function* function_ = nullptr;
};

}  // namespace tutti
