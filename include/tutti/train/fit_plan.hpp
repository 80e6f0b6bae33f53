// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_checkpoints.hpp>
#include <tutti/train/setup.hpp>

/// What a call of fit() is going to do, worked out and checked before anything is touched, so that
/// a trainer is as it was after a call that is refused.
namespace tutti::train {

/// The length of a fit.
struct FitPlan {
  Time max_duration{};              ///< up to here, counted from the run's begin
  std::int64_t dataloader_len = 0;  ///< batches of an epoch; -1: unknown
  bool complete = false;            ///< the run is there already
};

/// Two lengths are the same; those of different units, which cannot be compared, are not.
inline bool is_same(Time a, Time b) {
  return a.unit() == b.unit() && a == b;
}

/// How many batches make an epoch of this fit; -1: all.
std::int64_t subset_of(const Run& run, const FitOptions& options);

/// Checks the options of fit(): data, length, schedule. Changes nothing.
///
/// Throws c10::Error, a ValueError for a wrong number, saying what is missing or wrong, and what
/// the schedule throws when its times make no sense in this run.
FitPlan plan_fit(const State& state, const Run& run, const FitOptions& options);

/// Refuses a microbatch size or a precision of fit() to which the trainer cannot change.
void check_steps(const State& state, const FitOptions& options);

/// Refuses a restore_best that watches none of these sets.
void check_best(const Run& run, const std::vector<EvalSet>& sets);

/// At the end of a fit: the model gets its best weights, where they are kept. A run that a signal
/// has ended goes on from its last ones, and keeps them.
void restore_best(State& state, const Run& run);

/// Refuses `what` where no rank has the whole model.
void check_whole(const State& state, const char* what);

/// Refuses a fit that has nothing to do.
void check_something_is_left(const State& state, const FitPlan& plan);

/// Makes the run what the plan and the options say, but for the schedule. evals: the options' own,
/// which replace the run's unless there is none.
void take_over(State& state, Run& run, FitOptions& options, std::vector<EvalSet> evals,
               const FitPlan& plan);

/// Refuses an evaluation without sets, or with one whose loader says that it is empty.
void check_eval_sets(const State& state, const std::vector<EvalSet>& sets);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/fit_plan.inl.hpp>
#endif
