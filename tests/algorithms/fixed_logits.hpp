// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

#include <torch/nn/module.h>

#include <tutti/core/state.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>

/// A model whose outputs are given, for tests of what policies do to batches and losses.
struct FixedLogits : torch::nn::Module {
  explicit FixedLogits(at::Tensor values) : logits(std::move(values)) { logits.requires_grad_(); }
  tutti::Outputs forward(const tutti::Batch&) { return logits; }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return tutti::functional::soft_cross_entropy(outputs.tensor(), batch.targets());
  }
  at::Tensor logits;
};

/// A state in the middle of a step: microbatch and model are there, the forward pass is to come.
inline tutti::State mid_step(std::shared_ptr<FixedLogits> model, at::Tensor x, at::Tensor y) {
  tutti::State state;
  state.model = model;
  state.task = std::move(model);
  state.batch = tutti::Batch(std::move(x), std::move(y));
  return state;
}

/// Forward, as the loop does it.
inline void run_forward(tutti::State& state) {
  state.outputs = state.task.forward(state.batch);
}

/// Loss, as the loop does it.
inline void run_loss(tutti::State& state) {
  state.loss_parts = state.task.loss(state.outputs, state.batch);
  state.loss = state.loss_parts.total();
}

/// Fires `E` at a policy that has a match() for it, or none.
template <class E, class P>
void fire(P& policy, tutti::State& state) {
  if constexpr (tutti::Matches<P, E>) {
    if (!policy.match(E{}, state)) {
      return;
    }
  }
  if constexpr (tutti::Handles<P, E>) {
    policy.apply(E{}, state);
  }
}

/// One microbatch from BeforeForward to BeforeBackward with policies in this order at every event,
/// reversed at AfterLoss.
template <class... Ps>
void run_microbatch(tutti::State& state, Ps&... policies) {
  (fire<tutti::BeforeForward>(policies, state), ...);
  run_forward(state);
  (fire<tutti::BeforeLoss>(policies, state), ...);
  run_loss(state);
  std::tuple<Ps&...> all(policies...);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (fire<tutti::AfterLoss>(std::get<sizeof...(Ps) - 1 - I>(all), state), ...);
  }(std::index_sequence_for<Ps...>{});
  (fire<tutti::BeforeBackward>(policies, state), ...);
}
