// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>
#include <tutti/optim/detail/schedule_time.hpp>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

/// Schedules that rise and fall, once or again and again. The optimizer's learning rate is the
/// peak.
///
/// In every schedule times may be in any unit but sec: epochs are counted in batches, a dur is a
/// fraction of the run. Momentum is left alone; PyTorch's cycle it too unless cycle_momentum is
/// false.

namespace tutti {

/// How a learning rate goes from one value to another.
enum class Anneal : std::uint8_t {
  linear,
  cosine,
};

/// From `1 / div_factor` up to 1 and down to `1 / (div_factor * final_div_factor)`.
///
/// t_max is PyTorch's total_steps. Steps are counted from 0, as there: the last value is reached
/// one step before t_max and the peak one before `pct_start * t_max`. A step is a batch where t_max
/// is in ba or ep, or a dur of a run in these; then every batch has PyTorch's value. Else it is one
/// of t_max's unit. Past the last step the value stays; PyTorch's schedule refuses to go on.
///
/// Throws std::invalid_argument when a number is out of range.
/// Source: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large
/// Learning Rates", 2018; PyTorch, `torch.optim.lr_scheduler.OneCycleLR`.
struct OneCycle {
  Time t_max = "1dur";
  double pct_start = 0.3;  ///< part of t_max in which it rises; in [0, 1]
  Anneal anneal_strategy = Anneal::cosine;
  double div_factor = 25.0;       ///< peak over first value; > 0
  double final_div_factor = 1e4;  ///< first over last value; > 0
  bool three_phase = false;  ///< fall to the first value in as long as it rose, then to the last

  double operator()(const Progress& progress, double ssr = 1.0) const {
    check();
    const Time total = optim::detail::convert(t_max, progress, ssr);
    optim::detail::ratio(progress, total, t_max, "OneCycle's t_max");
    const double steps = total.value();
    const double step = std::fmin(progress.timestamp.get(total.unit()).value(), steps - 1);
    const double first = 1 / div_factor;
    const double last = first / final_div_factor;
    const double peak = pct_start * steps - 1;
    if (step <= peak) {
      return between(first, 1.0, step, 0.0, peak);
    }
    if (!three_phase) {
      return between(1.0, last, step, peak, steps - 1);
    }
    const double fallen = 2 * pct_start * steps - 2;
    return step <= fallen ? between(1.0, first, step, peak, fallen)
                          : between(first, last, step, fallen, steps - 1);
  }

 private:
  void check() const {
    if (!(pct_start >= 0 && pct_start <= 1)) {
      throw std::invalid_argument("schedule: OneCycle's pct_start is " + std::to_string(pct_start) +
                                  "; give one from 0 to 1.");
    }
    optim::detail::need_positive(div_factor, "OneCycle's div_factor");
    optim::detail::need_positive(final_div_factor, "OneCycle's final_div_factor");
  }
  // At `step` of the way that leads from one value at `begin` to the other at `end`.
  double between(double from, double to, double step, double begin, double end) const {
    const double x = end > begin ? (step - begin) / (end - begin) : 1.0;
    return anneal_strategy == Anneal::linear
               ? optim::detail::interpolate(from, to, x)
               : optim::detail::interpolate(to, from, optim::detail::half_cosine(x));
  }
};

/// Which cycles of Cyclic are as high as the first.
enum class CycleHeight : std::uint8_t {
  triangular,   ///< all
  triangular2,  ///< none: each is half as high as the one before
  exp_range,    ///< none: the height is multiplied by gamma in every batch
};

/// From `alpha_i` to 1 and back along lines, again and again.
///
/// alpha_i is PyTorch's base_lr over its max_lr, which is the optimizer's learning rate.
/// Throws std::invalid_argument when a time is of no length, TimeUnitError when the two differ in
/// unit once converted.
/// Source: Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017; PyTorch,
/// `torch.optim.lr_scheduler.CyclicLR`.
struct Cyclic {
  double alpha_i = 0.0;
  Time step_size_up = "2000ba";
  Time step_size_down{};  ///< in step_size_up's unit; 0: as long as step_size_up
  CycleHeight mode = CycleHeight::triangular;
  double gamma = 1.0;  ///< of exp_range

  double operator()(const Progress& progress, double ssr = 1.0) const {
    const Time rise = optim::detail::convert(step_size_up, progress, ssr);
    const Time fall = step_size_down ? optim::detail::convert(step_size_down, progress, ssr) : rise;
    optim::detail::ratio(progress, rise, step_size_up, "Cyclic's step_size_up");
    optim::detail::ratio(progress, fall, step_size_down ? step_size_down : step_size_up,
                         "Cyclic's step_size_down");
    const double length = (rise + fall).value();
    const double now = progress.timestamp.get(rise.unit()).value() / length;
    const double done = std::floor(now);
    const double x = now - done;
    const double top = rise.value() / length;
    const double part = x <= top ? x / top : (1 - x) / (1 - top);
    return optim::detail::interpolate(alpha_i, 1.0, part * height(done, progress));
  }

 private:
  double height(double cycles, const Progress& progress) const {
    switch (mode) {
      case CycleHeight::triangular2:
        return std::pow(0.5, cycles);
      case CycleHeight::exp_range:
        return std::pow(gamma, static_cast<double>(progress.timestamp.batch));
      case CycleHeight::triangular:
        break;
    }
    return 1.0;
  }
};

}  // namespace tutti
