// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/schedule_time.hpp>

#include <cmath>
#include <stdexcept>

/// Schedules that lead from one multiplier to another, by default over the whole run.
///
/// In every schedule times may be in any unit but sec: epochs are counted in batches, a dur is a
/// fraction of the run. Past t_max they stay at their last value.

namespace tutti {

/// `alpha` until `t_max`, then 1.
/// Source: MosaicML Composer, `composer.optim.ConstantScheduler`.
struct Constant {
  double alpha = 1.0;
  Time t_max = "1dur";

  double operator()(const Progress& progress, double ssr = 1.0) const {
    return progress.timestamp < optim::detail::convert(t_max, progress, ssr) ? alpha : 1.0;
  }
};

/// From `alpha_i` to `alpha_f` along a line.
/// Source: MosaicML Composer, `composer.optim.LinearScheduler`.
struct Linear {
  double alpha_i = 1.0;
  double alpha_f = 0.0;
  Time t_max = "1dur";

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const Time end = optim::detail::convert(t_max, progress, ssr);
    return optim::detail::interpolate(
        alpha_i, alpha_f, optim::detail::clipped_ratio(progress, end, t_max, "Linear's t_max"));
  }
};

/// From 1 to `alpha_f` along half a cosine.
/// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, eq. 5 with one restart period; MosaicML
/// Composer, `composer.optim.CosineAnnealingScheduler`.
struct CosineAnnealing {
  Time t_max = "1dur";
  double alpha_f = 0.0;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const Time end = optim::detail::convert(t_max, progress, ssr);
    const double x = optim::detail::clipped_ratio(progress, end, t_max, "CosineAnnealing's t_max");
    return optim::detail::interpolate(alpha_f, 1.0, optim::detail::half_cosine(x));
  }
};

/// From 1 to `alpha_f` along half a cosine, again and again: first in `t_0`, then each time in
/// `t_mult` times as long, truncated to whole units. Throws std::invalid_argument, from the first
/// call on, when the periods shrink to nothing before the run ends.
/// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, eq. 5; MosaicML Composer,
/// `composer.optim.CosineAnnealingWarmRestartsScheduler`.
struct CosineAnnealingWarmRestarts {
  Time t_0;
  double t_mult = 1.0;
  double alpha_f = 0.0;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const Time first = optim::detail::convert(t_0, progress, ssr);
    if (t_mult < 1.0 && progress.max_duration) {
      const Time end = optim::detail::convert("1dur", progress);
      if (end.unit() == first.unit() && end > 0) {
        position(first, end - 1);
      }
    }
    const double x = position(first, progress.timestamp.get(first.unit()));
    return optim::detail::interpolate(alpha_f, 1.0, optim::detail::half_cosine(x));
  }

 private:
  // Where `now` lies in its period, in [0, 1).
  double position(Time length, Time now) const {
    while (now >= length) {
      const Time next = length * t_mult;
      if (length <= 0 || next <= 0) {
        throw std::invalid_argument(
            "schedule: CosineAnnealingWarmRestarts' periods shrink to nothing before the run ends; "
            "make t_0 longer or t_mult larger.");
      }
      now = next == length ? now % length : now - length;  // equal periods need no loop
      length = next;
    }
    return (now / length).value();
  }
};

/// `alpha_f + (1 - alpha_f) * (1 - x)^power` with x the part of `t_max` that has passed.
/// Source: MosaicML Composer, `composer.optim.PolynomialScheduler`.
struct Polynomial {
  double power = 0.0;  ///< > 0; there is no default.
  Time t_max = "1dur";
  double alpha_f = 0.0;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    optim::detail::need_positive(power, "Polynomial's power");
    const Time end = optim::detail::convert(t_max, progress, ssr);
    const double x = optim::detail::clipped_ratio(progress, end, t_max, "Polynomial's t_max");
    return optim::detail::interpolate(alpha_f, 1.0, std::pow(1.0 - x, power));
  }
};

}  // namespace tutti
