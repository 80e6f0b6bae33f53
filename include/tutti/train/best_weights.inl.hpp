// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/best_weights.hpp>

namespace tutti::train {

namespace detail {

TUTTI_INLINE bool any_enters(const PolicyStates& policies) {
  bool any = false;
  for (const PolicyState& policy : policies) {
    any = any || policy.enter_checkpoint != nullptr;
  }
  return any;
}

}  // namespace detail

TUTTI_INLINE Weights copy_weights(const torch::nn::Module& model, bool to_host) {
  const c10::NoGradGuard no_grad;
  Weights out;
  for (const auto& [name, tensor] : checkpoint::module_tensors(model)) {
    const bool moves = to_host && !tensor.is_cpu();
    out.emplace_back(name, moves ? tensor.detach().cpu() : tensor.detach().clone());
  }
  return out;
}

TUTTI_INLINE void give_weights(const Weights& weights, torch::nn::Module& model) {
  const c10::NoGradGuard no_grad;
  Weights own = checkpoint::module_tensors(model);
  bool same = own.size() == weights.size();
  for (std::size_t i = 0; same && i < own.size(); ++i) {
    same = own[i].first == weights[i].first && own[i].second.sizes() == weights[i].second.sizes();
  }
  TUTTI_CHECK(same,
              "the weights that were kept do not fit the model any more: a policy has given it "
              "other parameters since; keep checkpoints instead, with CheckpointSaver");
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i].second.copy_(weights[i].second);
  }
}

TUTTI_INLINE KeptWeights::KeptWeights(const PolicyStates& policies, State& state)
    : policies_(policies), state_(state), training_(copy_weights(*state.model, false)) {
  if (detail::any_enters(policies_)) {
    const CheckpointScope entered(policies_, state_);
    evaluated_ = copy_weights(*state.model, false);
  }
}

TUTTI_INLINE void KeptWeights::give_back() const {
  if (!evaluated_.empty()) {
    const CheckpointScope entered(policies_, state_);
    give_weights(evaluated_, *state_.model);
  }
  give_weights(training_, *state_.model);
}

TUTTI_INLINE void give_everywhere(const Weights& weights, const PolicyStates& policies,
                                  State& state) {
  if (detail::any_enters(policies)) {
    const CheckpointScope entered(policies, state);
    give_weights(weights, *state.model);
  }
  give_weights(weights, *state.model);
  for (const auto& optimizer : state.optimizers) {
    if (auto* const keeps = dynamic_cast<optim::KeepsAverages*>(optimizer.get())) {
      keeps->adopt_weights();
    }
  }
}

TUTTI_INLINE void BestWeights::look(State& state) {
  if (!state.eval_metric_values.contains(options_.dataloader_label)) {
    return;  // not due yet
  }
  double value = 0;
  try {
    value = state.metric(options_.dataloader_label, options_.monitor);
  } catch (const c10::ValueError& error) {
    TUTTI_CHECK_VALUE(false, "restore_best: ", error.what_without_backtrace(),
                      ". Set monitor to one of these, or return the metric from the model's "
                      "metrics()");
  }
  if (!best_ ||
      tutti::detail::is_new_best(options_.comparison, options_.monitor, value, best_->value)) {
    const CheckpointScope entered(policies_, state);
    weights_ = copy_weights(*state.model, /*to_host=*/true);
    best_ = {value, state.timestamp.epoch, state.timestamp.batch};
  }
}

TUTTI_INLINE void BestWeights::save(Archive& archive) const {
  if (best_) {
    archive.put("value", best_->value);
    archive.put("epoch", best_->epoch);
    archive.put("batch", best_->batch);
    for (const auto& [name, tensor] : weights_) {
      archive.child("model").put(name, tensor);
    }
  }
}

TUTTI_INLINE void BestWeights::load(const Archive& archive) {
  best_.reset();
  weights_.clear();
  if (archive.contains("value")) {
    best_ = {archive.get<double>("value"), archive.get<std::int64_t>("epoch"),
             archive.get<std::int64_t>("batch")};
    const Archive& model = archive.child("model");
    model.each_leaf([&](const std::string& name, const Archive::Leaf& leaf) {
      if (const at::Tensor* tensor = leaf.tensor()) {
        weights_.emplace_back(name, *tensor);
      }
    });
  }
}

}  // namespace tutti::train
