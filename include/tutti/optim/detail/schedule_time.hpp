// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/time_list.hpp>

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

/// How schedules read their times; the arithmetic is Composer's, truncations included.

namespace tutti::optim::detail {

inline std::int64_t need_loader_length(Time time, const Progress& progress) {
  if (progress.dataloader_len == 0) {
    throw std::invalid_argument("schedule: the time " + to_string(time) +
                                " has no length, since the training loader has no batch; give it "
                                "data (drop_last leaves out a batch that is not full).");
  }
  if (progress.dataloader_len < 0) {
    throw std::invalid_argument("schedule: the time " + to_string(time) +
                                " needs a dataloader whose length is known; give it in ba, sp or "
                                "tok.");
  }
  return progress.dataloader_len;
}

/// `time` in a unit that the timestamp counts: epochs become batches, as does a dur of a run
/// counted in epochs; another dur takes the run's unit. `ssr` scales all but dur, which the already
/// scaled max_duration scales. Always truncated to whole units.
///
/// Throws std::invalid_argument for sec, for a dur without max_duration, and where the loader's
/// length is needed and not known.
inline Time convert(Time time, const Progress& progress, double ssr = 1.0) {
  if (time.unit() == TimeUnit::second) {
    throw std::invalid_argument("schedule: the time " + to_string(time) +
                                " is in seconds; schedules follow training, so give it in ep, ba, "
                                "sp, tok, iter or dur.");
  }
  if (time.is_fraction()) {
    const Time max = progress.max_duration;
    if (!max) {
      throw std::invalid_argument("schedule: the time " + to_string(time) +
                                  " needs a max_duration; set one, or give it in ep or ba.");
    }
    if (max.unit() != TimeUnit::epoch) {
      return max * time;
    }
    const auto length = static_cast<double>(need_loader_length(time, progress));
    return Time::batches(::tutti::detail::to_int(time.value() * length * max.value()));
  }
  if (time.unit() == TimeUnit::epoch) {
    time = Time::batches(time.count()) * need_loader_length(time, progress);
  }
  return time * ssr;
}

/// now / length; `what` names the length, and `given` is how it was written, in the error when it
/// is 0 or less.
inline double ratio(const Progress& progress, Time length, Time given, const char* what) {
  if (length <= 0) {
    std::string text = std::string("schedule: ") + what + " is " + to_string(given);
    if (to_string(length) != to_string(given)) {
      text += ", which is " + to_string(length) + " once converted to whole units";
    }
    throw std::invalid_argument(text + "; make it longer.");
  }
  return (progress.timestamp.get(length.unit()) / length).value();
}

/// The same, within [0, 1].
inline double clipped_ratio(const Progress& progress, Time length, Time given, const char* what) {
  const double x = ratio(progress, length, given, what);
  return x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
}

inline void need_positive(double value, const char* what) {
  if (!(value > 0.0)) {
    throw std::invalid_argument(std::string("schedule: ") + what + " is " + std::to_string(value) +
                                "; give one greater than 0.");
  }
}

/// How many of `milestones` are behind.
inline int reached(const TimeList& milestones, const Progress& progress, double ssr) {
  int count = 0;
  for (const Time milestone : milestones) {
    count += progress.timestamp >= convert(milestone, progress, ssr) ? 1 : 0;
  }
  return count;
}

/// From 1 at x = 0 down to 0 at x = 1, along half a cosine.
inline double half_cosine(double x) {
  return (1.0 + std::cos(x * std::numbers::pi)) / 2.0;
}

inline double interpolate(double from, double to, double x) {
  return from + (to - from) * x;
}

}  // namespace tutti::optim::detail
