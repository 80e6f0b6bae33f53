// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/dry_run.hpp>

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
