// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/rng_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/run.hpp>

/// Runs that only try a program out: TrainerOptions::dry_run and sanity_eval.
namespace tutti::train {

/// Makes options those of a dry run: `dry_run` batches of training and of each evaluation, and
/// state.scratch_folder, a new name that is alike on all ranks. scratch: removes what is there.
void make_dry(TrainerOptions& options, State& state,
              std::unique_ptr<checkpoint::TemporaryCheckpoint>& scratch);

/// What an evaluation that does not count would leave behind: all of it is as before at the end of
/// this one's life, and while it lives nobody gets logs.
class Untouched {
 public:
  /// subset: batches that each set has meanwhile, at most.
  Untouched(State& state, Run& run, PolicyStates policies, std::int64_t subset);
  ~Untouched();
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  State& state_;
  Run& run_;
  PolicyStates policies_;
  Logger logger_;
  std::map<std::string, MetricValues> values_;
  std::vector<std::int64_t> subsets_;     // of the evaluation sets
  std::vector<std::uint64_t> positions_;  // of the policies' random streams
  Archive generators_;                    // LibTorch's
};

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

TUTTI_INLINE void make_dry(TrainerOptions& options, State& state,
                           std::unique_ptr<checkpoint::TemporaryCheckpoint>& scratch) {
  options.max_duration = Time::batches(options.dry_run);
  options.scale_schedule_ratio = 1;
  options.autoresume = false;
  options.min_duration = {};
  state.scratch_folder =
      state.communicator->broadcast_bytes(checkpoint::TemporaryCheckpoint::new_path());
  scratch =
      std::make_unique<checkpoint::TemporaryCheckpoint>(state.scratch_folder, state.rank == 0);
}

TUTTI_INLINE Untouched::Untouched(State& state, Run& run, PolicyStates policies,
                                  std::int64_t subset)
    : state_(state),
      run_(run),
      policies_(std::move(policies)),
      logger_(std::exchange(state.logger, {})),
      values_(state.eval_metric_values) {
  for (const PolicyState& policy : policies_) {
    positions_.push_back(policy.rng != nullptr ? policy.rng->position() : 0);
  }
  checkpoint::save_rng(generators_);
  for (EvalSet& set : run_.evals) {
    subsets_.push_back(set.subset);
    set.subset = set.subset < 0 ? subset : std::min(set.subset, subset);
  }
}

TUTTI_INLINE Untouched::~Untouched() {
  state_.logger = std::move(logger_);
  state_.eval_metric_values = std::move(values_);
  for (std::size_t i = 0; i < policies_.size(); ++i) {
    if (Rng* rng = policies_[i].rng) {
      rng->restore(rng->seed(), rng->stream(), positions_[i]);
    }
  }
  for (std::size_t i = 0; i < subsets_.size(); ++i) {
    run_.evals[i].subset = subsets_[i];
  }
  checkpoint::load_rng(generators_);
}

}  // namespace tutti::train

#endif
