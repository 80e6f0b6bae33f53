// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/rewind.hpp>

namespace tutti::train {

TUTTI_INLINE Archive copy_archive(const Archive& archive) {
  Archive out;
  for (const Archive::Entry& entry : archive.entries()) {
    if (entry.is_child()) {
      out.put(entry.name, copy_archive(entry.child()));
    } else if (const at::Tensor* tensor = entry.leaf().tensor()) {
      out.put(entry.name, tensor->defined() ? tensor->detach().clone() : *tensor);
    } else {
      entry.leaf().visit([&](const auto& value) {
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (Archivable<Value>) {
          out.put(entry.name, value);
        }
      });
    }
  }
  return out;
}

TUTTI_INLINE Rewind::Rewind(PolicyStates policies, State& state, Run& run)
    : policies_(std::move(policies)),
      state_(state),
      run_(run),
      weights_(policies_, state),
      before_(state),
      scheduled_at_(run.scheduled_at),
      has_seen_nan_(run.has_seen_nan) {
  Archive rest;
  save_run(state_, run_, nullptr, rest, /*metrics=*/false);
  rest_ = copy_archive(rest);
  for (const PolicyState& policy : policies_) {
    Archive one;
    if (policy.save != nullptr) {
      policy.save(policy.policy, one);
    }
    own_.put(std::to_string(positions_.size()), copy_archive(one));
    positions_.push_back(policy.rng != nullptr ? policy.rng->position() : 0);
  }
  checkpoint::save_rng(generators_);
}

TUTTI_INLINE void Rewind::rewind() {
  Logger logger = std::move(state_.logger);  // whose it is at that moment
  const bool replaced = state_.parameters_replaced;
  state_ = before_;
  state_.logger = std::move(logger);
  weights_.give_back();
  TUTTI_CHECK(
      !replaced,
      "a policy has given frozen layers back to training, or other parameters to the model, "
      "which cannot be taken back");
  RunLoadReport report;
  load_run(state_, run_, nullptr, rest_, report);
  state_.initial_lrs = before_.initial_lrs;
  state_.previous_timestamp = before_.previous_timestamp;
  run_.scheduled_at = scheduled_at_;
  run_.has_seen_nan = has_seen_nan_;
  zero_gradients(state_);
  for (std::size_t i = 0; i < policies_.size(); ++i) {
    const PolicyState& policy = policies_[i];
    if (policy.load != nullptr) {
      policy.load(policy.policy, own_.child(std::to_string(i)));
    }
    if (policy.take_loaded != nullptr) {
      policy.take_loaded(policy.policy, state_);
    }
    if (policy.rng != nullptr) {
      policy.rng->restore(policy.rng->seed(), policy.rng->stream(), positions_[i]);
    }
  }
  checkpoint::load_rng(generators_);
}

}  // namespace tutti::train
