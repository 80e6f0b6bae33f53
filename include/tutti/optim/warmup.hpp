// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/schedule_time.hpp>
#include <tutti/optim/detail/time_list.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

// What the schedules with a warmup share.

namespace tutti::optim::detail {

/// While the run is warming up: the part of the warmup that has passed, in [0, 1]. None afterwards.
///
/// With `scale` the ramp is `ssr` times as long, yet the schedule still leaves it at the unscaled
/// time; so a squeezed ramp waits at its peak and a stretched one jumps. The reference does the
/// same, and runs with it depend on that.
inline std::optional<double> warmup_ratio(Time t_warmup, bool scale, const Progress& progress,
                                          double ssr) {
  const Time end = convert(t_warmup, progress);
  if (progress.timestamp >= end) {
    return std::nullopt;
  }
  const Time ramp = scale ? convert(t_warmup, progress, ssr) : end;
  return ramp ? clipped_ratio(progress, ramp, t_warmup, "t_warmup") : 1.0;
}

/// A time of a schedule as it was given; of a dur also what it is a part of.
inline std::string as_written(Time time, const Progress& progress) {
  return to_string(time) +
         (time.is_fraction() ? " of a run of " + to_string(progress.max_duration) : std::string());
}

/// The run's length, in batches where that is asked for and known; else as it was given.
inline Time length_in(TimeUnit unit, const Progress& progress) {
  const Time max = progress.max_duration;
  return unit == TimeUnit::batch && max.unit() == TimeUnit::epoch && progress.dataloader_len > 0
             ? Time::batches(max.count()) * progress.dataloader_len
             : max;
}

/// Refuses a warmup and a `t_max` (both converted) that do not fit each other or the run; messages
/// have them as they were given.
inline void check_warmup(Time warmup, Time t_max, Time given_warmup, Time given_max,
                         const Progress& progress, const char* name) {
  if (warmup.unit() != t_max.unit()) {
    throw std::invalid_argument(std::string("schedule: ") + name +
                                " cannot compare its t_warmup, " +
                                as_written(given_warmup, progress) + ", with its t_max, " +
                                as_written(given_max, progress) +
                                "; give both in the same unit, or t_warmup as a dur, like 0.1dur.");
  }
  const Time max = progress.max_duration;
  const Time needed = length_in(t_max.unit(), progress);
  if (max && t_max.unit() == needed.unit() && t_max < needed) {
    throw std::invalid_argument(std::string("schedule: ") + name + " ends at t_max = " +
                                to_string(given_max) + ", before the run does at " +
                                to_string(max) + "; make t_max at least as long as max_duration.");
  }
}

/// The part of the time between warmup and `t_max` that has passed, in [0, 1].
inline double ratio_after_warmup(Time t_warmup, Time t_max, const Progress& progress, double ssr,
                                 const char* name) {
  const Time start = convert(t_warmup, progress);
  const Time end = convert(t_max, progress, ssr);
  check_warmup(start, end, t_warmup, t_max, progress, name);
  if (end <= start) {
    return 0.0;
  }
  const Time now = progress.timestamp.get(start.unit());
  return std::clamp(((now - start) / (end - start)).value(), 0.0, 1.0);
}

inline std::string warmup_notice(Time t_warmup, bool scale, const Progress& progress, double ssr,
                                 const char* name) {
  const Time converted = convert(t_warmup, progress, scale ? ssr : 1.0);
  const std::string what =
      std::string("schedule: ") + name + "'s t_warmup of " + to_string(t_warmup) + " is ";
  if (!(converted > 0)) {
    return what + to_string(converted) +
           " once converted to whole units, so there is no warmup; a dur may be too small a part "
           "of this run.";
  }
  const Time length = length_in(converted.unit(), progress);
  if (length && length.unit() == converted.unit() && converted > length) {
    return what + "longer than the run of " + to_string(progress.max_duration) +
           ", so the learning rate never comes to its peak; make the warmup shorter.";
  }
  return {};
}

}  // namespace tutti::optim::detail

/// Schedules that begin at 0 and rise along a line to their peak during `t_warmup`.
///
/// In every schedule times may be in any unit but sec: epochs are counted in batches, a dur is a
/// fraction of the run. `scale_warmup` lets the scale ratio of the run stretch the ramp too. Except
/// for MultiStepWithWarmup, t_warmup and t_max must agree in unit once converted, and t_max must
/// not end before the run; std::invalid_argument otherwise. `notice` tells when the warmup is
/// empty.

namespace tutti {

/// A warmup to 1, then MultiStep; milestones count from the start of the run.
/// Source: MosaicML Composer, `composer.optim.MultiStepWithWarmupScheduler`.
struct MultiStepWithWarmup {
  Time t_warmup;
  TimeList milestones;
  double gamma = 0.1;
  bool scale_warmup = false;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const auto rising = optim::detail::warmup_ratio(t_warmup, scale_warmup, progress, ssr);
    return rising ? *rising : std::pow(gamma, optim::detail::reached(milestones, progress, ssr));
  }
  std::string notice(const Progress& progress, double ssr) const {
    return optim::detail::warmup_notice(t_warmup, scale_warmup, progress, ssr,
                                        "MultiStepWithWarmup");
  }
};

/// A warmup to `alpha`, then `alpha`, past t_max as well.
/// Source: MosaicML Composer, `composer.optim.ConstantWithWarmupScheduler`.
struct ConstantWithWarmup {
  Time t_warmup;
  double alpha = 1.0;
  Time t_max = "1dur";
  bool scale_warmup = false;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    optim::detail::ratio_after_warmup(t_warmup, t_max, progress, ssr, "ConstantWithWarmup");
    const auto rising = optim::detail::warmup_ratio(t_warmup, scale_warmup, progress, ssr);
    return alpha * rising.value_or(1.0);
  }
  std::string notice(const Progress& progress, double ssr) const {
    return optim::detail::warmup_notice(t_warmup, scale_warmup, progress, ssr,
                                        "ConstantWithWarmup");
  }
};

/// A warmup to `alpha_i`, then along a line to `alpha_f` at `t_max`.
/// Source: MosaicML Composer, `composer.optim.LinearWithWarmupScheduler`.
struct LinearWithWarmup {
  Time t_warmup;
  double alpha_i = 1.0;
  double alpha_f = 0.0;
  Time t_max = "1dur";
  bool scale_warmup = false;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const double x =
        optim::detail::ratio_after_warmup(t_warmup, t_max, progress, ssr, "LinearWithWarmup");
    const auto rising = optim::detail::warmup_ratio(t_warmup, scale_warmup, progress, ssr);
    return rising ? alpha_i * *rising : optim::detail::interpolate(alpha_i, alpha_f, x);
  }
  std::string notice(const Progress& progress, double ssr) const {
    return optim::detail::warmup_notice(t_warmup, scale_warmup, progress, ssr, "LinearWithWarmup");
  }
};

/// A warmup to 1, then along half a cosine to `alpha_f` at `t_max`.
/// Source: MosaicML Composer, `composer.optim.CosineAnnealingWithWarmupScheduler`.
struct CosineAnnealingWithWarmup {
  Time t_warmup;
  Time t_max = "1dur";
  double alpha_f = 0.0;
  bool scale_warmup = false;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const double x = optim::detail::ratio_after_warmup(t_warmup, t_max, progress, ssr,
                                                       "CosineAnnealingWithWarmup");
    const auto rising = optim::detail::warmup_ratio(t_warmup, scale_warmup, progress, ssr);
    return rising ? *rising
                  : optim::detail::interpolate(alpha_f, 1.0, optim::detail::half_cosine(x));
  }
  std::string notice(const Progress& progress, double ssr) const {
    return optim::detail::warmup_notice(t_warmup, scale_warmup, progress, ssr,
                                        "CosineAnnealingWithWarmup");
  }
};

/// A warmup to 1, then `alpha_f + (1 - alpha_f) * (1 - x)^power` with x the part of the time to
/// `t_max` that has passed.
/// Source: MosaicML Composer, `composer.optim.PolynomialWithWarmupScheduler`.
struct PolynomialWithWarmup {
  Time t_warmup;
  double power = 2.0;
  Time t_max = "1dur";
  double alpha_f = 0.0;
  bool scale_warmup = false;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    optim::detail::need_positive(power, "PolynomialWithWarmup's power");
    const double x =
        optim::detail::ratio_after_warmup(t_warmup, t_max, progress, ssr, "PolynomialWithWarmup");
    const auto rising = optim::detail::warmup_ratio(t_warmup, scale_warmup, progress, ssr);
    return rising ? *rising : optim::detail::interpolate(alpha_f, 1.0, std::pow(1.0 - x, power));
  }
  std::string notice(const Progress& progress, double ssr) const {
    return optim::detail::warmup_notice(t_warmup, scale_warmup, progress, ssr,
                                        "PolynomialWithWarmup");
  }
};

}  // namespace tutti
