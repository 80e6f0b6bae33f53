// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/rng_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/best_weights.hpp>
#include <tutti/train/graphed.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_state.hpp>

/// Steps that are taken back.
namespace tutti::train {

/// A copy of an archive whose tensors are copies, too.
Archive copy_archive(const Archive& archive);

/// Where a run is: weights, optimizers, schedule, scaler, policies that save themselves, random
/// streams, time, and what State says of the last batch.
///
/// rewind() puts all of it back, bit for bit. Policies without save() keep what they have. A
/// collective, both ways.
class Rewind {
 public:
  Rewind(PolicyStates policies, State& state, Run& run);
  Rewind(const Rewind&) = delete;
  Rewind& operator=(const Rewind&) = delete;

  void rewind();

 private:
  PolicyStates policies_;
  State& state_;
  Run& run_;
  KeptWeights weights_;
  State before_;
  Archive rest_;        // save_run()
  Archive own_;         // of the policies
  Archive generators_;  // LibTorch's
  std::vector<std::uint64_t> positions_;
  Timestamp scheduled_at_;
  bool has_seen_nan_;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/rewind.inl.hpp>
#endif
