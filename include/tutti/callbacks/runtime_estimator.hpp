// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/callbacks/detail/clock_unit.hpp>
#include <tutti/core/detail/part_done.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

namespace detail {

// What a RuntimeEstimator has seen since it started its clock.
struct RunSoFar {
  bool started = false;
  bool disabled = false;
  double start = 0;           // seconds of the clock
  double start_progress = 0;  // part of the run
  double eval_seconds = 0;
  std::int64_t skipped = 0;
  struct Evaluations {
    std::vector<double> seconds;
    double every = 0;  // part of the run from one to the next
  };
  std::map<std::string, Evaluations> evals;  // by label
};

}  // namespace detail

/// Logs how long the run will still take.
///
/// At BatchEnd `time/remaining_estimate`, in time_unit: the time per part of the run so far, times
/// what is left, plus the evaluations that are still to come. The first skip_batches batches, which
/// are often slower, are left out, and so is the first of several evaluations. A resumed run
/// estimates from what it sees itself.
/// Source: MosaicML Composer, `composer.callbacks.RuntimeEstimator`.
struct RuntimeEstimator final {
  std::int64_t skip_batches = 1;           ///< before the clock starts; >= 0
  ClockUnit time_unit = ClockUnit::hours;  ///< of the estimate
  double (*clock)() = nullptr;             ///< gives seconds since any moment; null: a steady clock

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<detail::RunSoFar> so_far{};  ///< what the run has taken
  } run{};

  static constexpr std::string_view name = "RuntimeEstimator";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
  };
  using events = types<Init, FitStart, BatchStart, BatchEnd, EvalEnd>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(skip_batches >= 0, "RuntimeEstimator: skip_batches", skip_batches, "0 or more");
  }

  void apply(Init, const State& state) {
    state.logger.log_hyperparameters(
        {{"time/remaining_estimate_unit", std::string(to_string(time_unit))}});
  }
  void apply(FitStart, const State&) { run.so_far.reset(); }  // another length, another beginning
  void apply(BatchStart, const State& state) {
    if (run.so_far->disabled || run.so_far->started || run.so_far->skipped < skip_batches) {
      return;
    }
    if (!state.max_duration) {
      TORCH_WARN("RuntimeEstimator: max_duration is not set, so the remaining time is not known");
      run.so_far->disabled = true;
      return;
    }
    run.so_far->started = true;
    run.so_far->start = now();
    run.so_far->start_progress = detail::part_done(state);
  }
  void apply(BatchEnd, const State& state) {
    if (run.so_far->skipped < skip_batches) {
      ++run.so_far->skipped;
    } else if (run.so_far->started) {
      estimate(state);
    }
  }
  void apply(EvalEnd, const State& state) {
    if (!run.so_far->started) {
      return;
    }
    const double seconds = detail::to_seconds(state.eval_timestamp.total_wct);
    run.so_far->eval_seconds += seconds;
    auto& evals = run.so_far->evals[state.dataloader_label];
    evals.seconds.push_back(seconds);
    evals.every = (detail::part_done(state) - run.so_far->start_progress) /
                  static_cast<double>(evals.seconds.size());
  }

 private:
  [[nodiscard]] double now() const {
    return clock != nullptr
               ? clock()
               : detail::to_seconds(std::chrono::steady_clock::now().time_since_epoch());
  }

  void estimate(const State& state) const {
    const double done = detail::part_done(state);
    if (done <= run.so_far->start_progress || !state.logger.wants_metrics()) {
      return;
    }
    const double elapsed = now() - run.so_far->start - run.so_far->eval_seconds;
    double remaining = elapsed / (done - run.so_far->start_progress) * (1 - done);
    for (const auto& [label, evals] : run.so_far->evals) {
      if (evals.every > 0) {
        const double total = (1 - run.so_far->start_progress) / evals.every;
        remaining +=
            mean(evals.seconds) * std::max(0.0, total - static_cast<double>(evals.seconds.size()));
      }
    }
    state.log_metrics({{"time/remaining_estimate", remaining / detail::seconds_in(time_unit)}});
  }

  // The first one is often slower and counts only when it is the only one.
  static double mean(const std::vector<double>& seconds) {
    const std::size_t first = seconds.size() > 1 ? 1 : 0;
    double sum = 0;
    for (std::size_t i = first; i < seconds.size(); ++i) {
      sum += seconds[i];
    }
    return sum / static_cast<double>(seconds.size() - first);
  }
};

}  // namespace tutti
