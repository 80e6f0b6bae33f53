// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/schedule_time.hpp>
#include <tutti/optim/detail/time_list.hpp>

#include <cmath>

/// Schedules that multiply the learning rate by gamma now and then, or all the time.
///
/// In every schedule times may be in any unit but sec: epochs are counted in batches, a dur is a
/// fraction of the run.

namespace tutti {

/// `gamma^k`, where k is the number of whole `step_size`s done so far.
/// Source: MosaicML Composer, `composer.optim.StepScheduler`.
struct Step {
  Time step_size;
  double gamma = 0.1;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const Time step = optim::detail::convert(step_size, progress, ssr);
    return std::pow(
        gamma, std::floor(optim::detail::ratio(progress, step, step_size, "Step's step_size")));
  }
};

/// `gamma^k`, where k is the number of milestones reached; they need no order and may differ in
/// unit.
/// Source: MosaicML Composer, `composer.optim.MultiStepScheduler`.
struct MultiStep {
  TimeList milestones;
  double gamma = 0.1;

  double operator()(const Progress& progress, double ssr = 1.0) const {
    return std::pow(gamma, optim::detail::reached(milestones, progress, ssr));
  }
};

/// `gamma^x`, where x is the number of `decay_period`s done so far, not rounded.
/// Source: MosaicML Composer, `composer.optim.ExponentialScheduler`.
struct Exponential {
  double gamma = 0.0;  ///< > 0; there is no default.
  Time decay_period = "1ep";

  double operator()(const Progress& progress, double ssr = 1.0) const {
    optim::detail::need_positive(gamma, "Exponential's gamma");
    const Time period = optim::detail::convert(decay_period, progress, ssr);
    return std::pow(
        gamma, optim::detail::ratio(progress, period, decay_period, "Exponential's decay_period"));
  }
};

}  // namespace tutti
