// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/flight_recorder.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/train/step.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <string>

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
    const dist::CallPurpose mean("the loss");
    loss = loss.div(state.world_size);
    state.communicator->all_reduce(loss, dist::ReduceOp::sum);
  }
  return loss;
}

TUTTI_INLINE std::int64_t num_loss_tokens(const Batch& batch, const State& state, const Run& run) {
  const auto* const next = dynamic_cast<const models::CausalLanguageModel*>(state.model.get());
  return run.train.num_loss_tokens(batch, next != nullptr);
}

TUTTI_INLINE void refuse_loss(const State& state) {
  TUTTI_CHECK(at::isFloatingType(state.loss.scalar_type()), "the model's loss is ",
              state.loss.scalar_type(), ", expected floating point, which has gradients");
  TUTTI_CHECK(false,
              "the model's loss needs no gradient, so that nothing can be trained: no parameter "
              "that requires a gradient has a part in it, or forward() or loss() detach it "
              "(detach(), item(), argmax(), a NoGradGuard); freeze fewer parameters, or compute "
              "the loss of the outputs themselves");
}

TUTTI_INLINE Loss without_nan(Loss loss) {
  for (auto& [name, part] : loss) {
    part = part.nan_to_num(0.0);
  }
  return loss;
}

TUTTI_INLINE double mean_weight(double weight, std::size_t microbatches, const State& state,
                                const Run& run) {
  const bool meets = run.parallel && run.parallel->meets_in_every_pass();
  const auto count = static_cast<double>(microbatches);
  std::array<double, 3> sums{weight, count, count * count};
  const dist::CallPurpose weights("the batch's weight");
  state.communicator->all_reduce(std::span<double>(sums.data(), meets ? 3U : 1U),
                                 dist::ReduceOp::sum);
  // Numbers are equal when the sum of their squares is the least that their sum allows.
  if (meets && sums[2] * state.world_size != sums[1] * sums[1]) {
    const auto counts = state.communicator->all_gather_bytes(std::to_string(microbatches));
    const auto other = std::find_if(counts.begin(), counts.end(),
                                    [&](const std::string& one) { return one != counts.front(); });
    TUTTI_CHECK_VALUE(
        other == counts.end(), "rank ", other - counts.begin(), " has ", *other,
        " microbatches of its batch and rank 0 has ", counts.front(),
        ", so one would wait for the others in a microbatch that they do not have: with sharding "
        "of gradients or parameters, and with SyncStrategy::multi_auto_sync, ranks meet in every "
        "one. Give all ranks batches of one size, or train without microbatches, with "
        "ShardStage::optimizer or with SyncStrategy::single_auto_sync");
  }
  return sums[0] / state.world_size;
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
