// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/step.hpp>

namespace tutti::train::detail {

TUTTI_INLINE Replay::Replay(std::vector<Rng*> rngs, at::Device device) : rngs_(std::move(rngs)) {
  for (Rng* rng : rngs_) {
    positions_.push_back(rng->position());
  }
  remember(at::Device(at::kCPU));
  if (!device.is_cpu()) {
    remember(device);
  }
}

TUTTI_INLINE void Replay::rewind() {
  for (std::size_t i = 0; i < rngs_.size(); ++i) {
    rngs_[i]->restore(rngs_[i]->seed(), rngs_[i]->stream(), positions_[i]);
  }
  for (auto& [generator, saved] : generators_) {
    generator.set_state(saved);
  }
}

TUTTI_INLINE void Replay::remember(at::Device device) {
  const at::Generator& generator = at::globalContext().defaultGenerator(device);
  generators_.emplace_back(generator, generator.get_state());
}

TUTTI_INLINE void forget_attempt(State& state, Run& run) {
  state.outputs = {};
  state.loss.reset();
  state.loss_parts = {};
  state.is_ascent = false;
  zero_gradients(state);
  if (run.graphs) {
    run.graphs->forget();
  }
  if (run.parallel) {
    run.parallel->reset();
  }
  release_memory(state.device);
}

TUTTI_INLINE at::Tensor mean_over_ranks(at::Tensor loss, const State& state) {
  if (state.world_size > 1) {
    loss = loss.div(state.world_size);
    state.communicator->all_reduce(loss, dist::ReduceOp::sum);
  }
  return loss;
}

TUTTI_INLINE void add_loss(at::Tensor& sum, const at::Tensor& loss, double share) {
  at::Tensor part = loss.detach();
  if (part.scalar_type() == at::kBFloat16 || part.scalar_type() == at::kHalf) {
    part = part.to(at::kFloat);
  }
  if (share != 1) {
    part = part.mul(share);
  }
  sum = sum.defined() ? sum.add(part) : part;
}

TUTTI_INLINE void add_turn_losses(State& state, double share, bool report) {
  add_loss(state.total_loss[state.due_optimizer], state.loss, share);
  if (!report) {
    add_losses(state, share);
  }
}

TUTTI_INLINE void add_losses(State& state, double share) {
  add_loss(state.total_loss["total"], state.loss, share);
  if (state.loss_parts.size() > 1 || !state.loss_parts.contains("total")) {
    for (const auto& [name, part] : state.loss_parts) {
      if (name != "total") {
        add_loss(state.total_loss[name], part.dim() == 0 ? part : part.mean(), share);
      }
    }
  }
}

}  // namespace tutti::train::detail
