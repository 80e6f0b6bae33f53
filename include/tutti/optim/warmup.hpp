// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/schedule_time.hpp>
#include <tutti/optim/detail/time_list.hpp>
#include <tutti/optim/detail/warmup.hpp>

#include <cmath>
#include <string>

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
