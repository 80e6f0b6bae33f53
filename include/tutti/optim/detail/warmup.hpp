// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/schedule_time.hpp>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

/// What the schedules with a warmup share.

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
  Time needed = max;
  if (t_max.unit() == TimeUnit::batch && max.unit() == TimeUnit::epoch &&
      progress.dataloader_len > 0) {
    needed = Time::batches(max.count()) * progress.dataloader_len;
  }
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
  return converted > 0
             ? std::string()
             : std::string("schedule: ") + name + "'s t_warmup of " + to_string(t_warmup) + " is " +
                   to_string(converted) +
                   " once converted to whole units, so there is no warmup; a dur may be too "
                   "small a part of this run.";
}

}  // namespace tutti::optim::detail
