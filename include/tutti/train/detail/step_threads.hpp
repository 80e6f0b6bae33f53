// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/state.hpp>

/// How the loop has work done by a number of threads without knowing how that is chosen.
namespace tutti::train {

struct Run;

/// Who chooses it: train/num_threads.hpp.
class StepThreads {
 public:
  StepThreads() = default;
  StepThreads(const StepThreads&) = delete;
  StepThreads& operator=(const StepThreads&) = delete;
  virtual ~StepThreads() = default;

  /// Has `step` train on state.batch, at times more than once, of which all but one are taken back.
  virtual void train(State& state, Run& run, c10::function_ref<void()> step) = 0;

  /// Has `forward` compute the outputs of state.batch in an evaluation, at times twice.
  virtual Outputs evaluate(State& state, c10::function_ref<Outputs()> forward) = 0;
};

}  // namespace tutti::train
