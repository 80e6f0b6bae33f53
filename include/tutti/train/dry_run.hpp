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
#include <tutti/train/dry_run.inl.hpp>
#endif
