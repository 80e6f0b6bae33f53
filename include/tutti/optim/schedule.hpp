// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/constants.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/time.hpp>

#include <concepts>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tutti {

/// `S` is a schedule that can be scaled: `schedule(progress, ssr)` is the multiplier of every
/// group's initial learning rate.
template <class S>
concept ScalableSchedule = requires(const S& schedule, const Progress& progress, double ssr) {
  { schedule(progress, ssr) } -> std::convertible_to<double>;
};

/// `S` is a schedule: `schedule(progress)` or `schedule(progress, ssr)` is a multiplier.
template <class S>
concept LearningRateSchedule =
    ScalableSchedule<S> || requires(const S& schedule, const Progress& progress) {
      { schedule(progress) } -> std::convertible_to<double>;
    };

namespace detail {

// The schedule's own notice where it has one.
template <class S>
std::string notice_of(const S& schedule, const Progress& progress, double ssr) {
  if constexpr (requires { std::string(schedule.notice(progress, ssr)); }) {
    return schedule.notice(progress, ssr);
  } else {
    return {};
  }
}

template <class F>
concept NearSchedule = !LearningRateSchedule<F> && (std::is_function_v<std::remove_pointer_t<F>> ||
                                                    requires { &F::operator(); });

template <class F>
inline constexpr bool is_schedule = LearningRateSchedule<F>;  // no tour of the concept in messages

}  // namespace detail

/// A learning-rate schedule of any type: one of optim/schedules.hpp, or any function of the run's
/// progress. A schedule is a pure function, so evaluating one twice, out of order or after a resume
/// changes nothing. An empty one leaves learning rates alone.
///
///     Schedule s = CosineAnnealing{};
///     Schedule t = [](const Progress& p) { return p.timestamp < "3ep" ? 1.0 : 0.1; };
///
/// There is exactly one schedule in a run; `Product{a, b}` multiplies two. (The reference takes a
/// list that it documents as multiplying, of which in fact the last one wins.)
class Schedule {
 public:
  Schedule() = default;

  template <class S>
    requires(LearningRateSchedule<S> && !std::same_as<std::remove_cvref_t<S>, Schedule>)
  Schedule(S schedule) {
    if constexpr (detail::has_fields<S>()) {  // not a function of somebody's own
      name_ = detail::type_name<S>();
      detail::add_constants(constants_, "", schedule);
    }
    if constexpr (requires { std::as_const(schedule).notice(Progress{}, 1.0); }) {
      notice_ = [schedule](const Progress& p, double ssr) {
        return detail::notice_of(schedule, p, ssr);
      };
    }
    call_ = [schedule = std::move(schedule)](const Progress& p, double ssr) -> double {
      if constexpr (ScalableSchedule<S>) {
        return schedule(p, ssr);
      } else {
        if (ssr != 1.0) {
          throw std::invalid_argument(
              "schedule: a function of the progress alone cannot be scaled; take a second "
              "parameter, double scale_schedule_ratio, or leave that option at 1.");
        }
        return schedule(p);
      }
    };
  }

  /// Refuses a function of something else.
  template <detail::NearSchedule F>
  Schedule(F) {
    static_assert(detail::is_schedule<F>,
                  "tutti: this function is no schedule; a schedule is called with const "
                  "tutti::Progress&, whose timestamp has batch and epoch, and, if it likes, with "
                  "double scale_schedule_ratio, and returns the factor of the learning rate.");
  }

  /// The multiplier now. `ssr` stretches (> 1) or squeezes (< 1) the schedule's own times;
  /// max_duration in `progress` has already been scaled.
  ///
  /// Throws std::invalid_argument when the schedule's times cannot be understood in this run.
  double operator()(const Progress& progress, double ssr = 1.0) const {
    return call_ ? call_(progress, ssr) : 1.0;
  }

  /// What a user should be told once about this schedule in this run; empty when all is well.
  std::string notice(const Progress& progress, double ssr = 1.0) const {
    return notice_ ? notice_(progress, ssr) : std::string();
  }

  explicit operator bool() const noexcept { return static_cast<bool>(call_); }

  /// The name of its type; empty for a function.
  [[nodiscard]] std::string_view name() const { return name_; }

  /// Its members with their values.
  [[nodiscard]] const detail::Constants& constants() const { return constants_; }

 private:
  std::function<double(const Progress&, double)> call_;
  std::function<std::string(const Progress&, double)> notice_;
  std::string_view name_;
  detail::Constants constants_;
};

/// Two schedules multiplied: `Product{LinearWithWarmup{...}, MultiStep{...}}`.
template <ScalableSchedule A, ScalableSchedule B>
struct Product {
  A first;
  B second;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    return first(progress, ssr) * second(progress, ssr);
  }
  std::string notice(const Progress& progress, double ssr) const {
    const std::string a = detail::notice_of(first, progress, ssr);
    const std::string b = detail::notice_of(second, progress, ssr);
    return a.empty() || b.empty() ? a + b : a + "\n" + b;
  }
};
template <class A, class B>
Product(A, B) -> Product<A, B>;

}  // namespace tutti
