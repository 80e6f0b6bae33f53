// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/count_or_auto.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/policy_states.hpp>

/// How the loop has work done by a number of threads without knowing how that is chosen.
namespace tutti::train {

class MetricSet;
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

  /// Has the metrics of an evaluation see state.batch and state.outputs, at times twice, of which
  /// one is taken back.
  virtual void update_metrics(State& state, MetricSet& metrics) = 0;
};

/// How the program makes who chooses; null when it has none. policies: of the run. It costs compile
/// time, so <tutti/trainer.hpp> does not include it: a program that includes
/// <tutti/train/num_threads.hpp> (or <tutti/tutti.hpp>) anywhere brings it in.
using MakeStepThreads = std::unique_ptr<StepThreads> (*)(PolicyStates policies);
inline MakeStepThreads& threads_support() {
  static MakeStepThreads instance = nullptr;
  return instance;
}

/// Gives the whole program so many threads within operators; 0 and "auto": as LibTorch is set.
void set_num_threads(const CountOrAuto& wanted);

/// What chooses the number of threads of each step where `wanted` is "auto"; null where it is not,
/// and where there is nothing to choose, as on a GPU, which a warning says. policies: of the run.
/// Throws c10::ValueError when the program cannot choose.
std::unique_ptr<StepThreads> choose_threads(const CountOrAuto& wanted, const State& state,
                                            PolicyStates policies);

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

TUTTI_INLINE void set_num_threads(const CountOrAuto& wanted) {
  if (wanted.count > 0) {
    at::set_num_threads(static_cast<int>(wanted.count));
  }
}

TUTTI_INLINE std::unique_ptr<StepThreads> choose_threads(const CountOrAuto& wanted,
                                                         const State& state,
                                                         PolicyStates policies) {
  if (!wanted.automatic) {
    return nullptr;
  }
  TUTTI_CHECK_VALUE(threads_support() != nullptr,
                    "num_threads is \"auto\", but the program cannot choose a number: add #include "
                    "<tutti/train/num_threads.hpp> to the file that makes the Trainer, or give a "
                    "number");
  const int threads = at::get_num_threads();
  std::string why_not;
  if (!state.device.is_cpu()) {
    why_not = "the model is on " + state.device.str();
  } else if (state.sharding != nullptr || state.spread != nullptr) {
    why_not = "a rank has a part of the model, so that its steps cannot be taken back";
  } else if (threads == 1 && state.world_size == 1) {  // else it compares together with the others
    why_not = "there are no fewer";
  }
  if (why_not.empty()) {
    return threads_support()(std::move(policies));
  }
  if (state.rank == 0) {
    TORCH_WARN("num_threads is auto, but ", why_not, ": it stays ", threads);
  }
  return nullptr;
}

}  // namespace tutti::train

#endif
