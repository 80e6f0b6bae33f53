// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/several.hpp>

namespace tutti::train {

namespace detail {

// The trained parameters that the globs name.
TUTTI_INLINE std::vector<at::Tensor> chosen(const NamedOptimizer& one,
                                            const torch::nn::Module& model) {
  std::vector<at::Tensor> out;
  std::vector<bool> matched(one.parameters.size(), false);
  for (const auto& item : model.named_parameters()) {
    bool any = false;
    for (std::size_t i = 0; i < one.parameters.size(); ++i) {
      if (checkpoint::glob_matches(one.parameters[i], item.key())) {
        matched[i] = any = true;
      }
    }
    if (any && item.value().requires_grad()) {
      out.push_back(item.value());
    }
  }
  for (std::size_t i = 0; i < matched.size(); ++i) {
    TUTTI_CHECK_VALUE(matched[i], "optimizers: \"", one.name, "\" is to train \"",
                      one.parameters[i], "\", which names no parameter of the model; it has ",
                      model.named_parameters().is_empty()
                          ? std::string("none")
                          : "\"" + model.named_parameters()[0].key() + "\" and others");
  }
  return out;
}

TUTTI_INLINE bool has(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& own : group.params()) {
      if (own.is_same(parameter)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace detail

TUTTI_INLINE std::vector<std::shared_ptr<torch::optim::Optimizer>> build_several(
    const std::vector<NamedOptimizer>& several, torch::nn::Module& model) {
  std::vector<std::shared_ptr<torch::optim::Optimizer>> out;
  for (const NamedOptimizer& one : several) {
    TUTTI_CHECK_VALUE(
        !one.name.empty() && one.name != "total", "optimizers: one ",
        one.name.empty() ? "has no name" : "is called \"total\", as the sum of losses",
        "; give each a name of its own, "
        "{\"generator\", DecoupledAdamW{.lr = 1e-4}, {\"generator.*\"}}");
    for (const NamedOptimizer& other : several) {
      TUTTI_CHECK_VALUE(&other == &one || other.name != one.name, "optimizers: two are called \"",
                        one.name, "\"; give each a name of its own");
    }
    std::vector<at::Tensor> parameters = detail::chosen(one, model);
    TUTTI_CHECK_VALUE(one.optimizer, "optimizers: \"", one.name,
                      "\" has no optimizer; give it one, DecoupledAdamW{.lr = 1e-4} for one");
    out.push_back(one.optimizer.build(model, std::move(parameters)));
    TUTTI_CHECK_VALUE(!optim::calls_closure(*out.back()), "optimizers: \"", one.name,
                      "\" calls a closure in its step, like LBFGS, and has to be the run's only "
                      "optimizer");
  }
  for (const auto& item : model.named_parameters()) {
    const NamedOptimizer* owner = nullptr;
    for (std::size_t i = 0; i < several.size(); ++i) {
      if (detail::has(*out[i], item.value())) {
        TUTTI_CHECK_VALUE(owner == nullptr, "optimizers: the parameter \"", item.key(),
                          "\" is trained by \"", owner != nullptr ? owner->name : "", "\" and \"",
                          several[i].name, "\"; give it to one of them");
        owner = &several[i];
      }
    }
    TUTTI_CHECK_VALUE(owner != nullptr || !item.value().requires_grad(),
                      "optimizers: no optimizer trains the parameter \"", item.key(),
                      "\"; name it in the parameters of one, or set requires_grad(false)");
  }
  for (std::size_t i = 0; i < several.size(); ++i) {
    bool any = false;
    for (const auto& parameter : model.parameters()) {
      any = any || detail::has(*out[i], parameter);
    }
    TUTTI_CHECK_VALUE(any, "optimizers: \"", several[i].name,
                      "\" has none of the model's parameters; name them: {\"", several[i].name,
                      ".*\"}");
  }
  return out;
}

TUTTI_INLINE std::vector<Turn> begin_turns(const std::vector<NamedOptimizer>& several,
                                           State& state) {
  state.optimizers = build_several(several, *state.model);
  std::vector<Turn> turns;
  for (const NamedOptimizer& one : several) {
    state.optimizer_names.push_back(one.name);
    turns.push_back({one.name, one.when, one.schedule, static_cast<bool>(one.schedule)});
  }
  return turns;
}

TUTTI_INLINE bool only_one_calls_closure(
    const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
  const bool calls = optim::calls_closure(*optimizers.front());
  TUTTI_CHECK(!calls || optimizers.size() == 1,
              "an optimizer that calls a closure in its step, like LBFGS, has to be the run's only "
              "one; there are ",
              optimizers.size());
  return calls;
}

TUTTI_INLINE OwnTurn::OwnTurn(State& state,
                              const std::vector<std::shared_ptr<torch::optim::Optimizer>>& all,
                              std::size_t index, const std::string& name)
    : state_(state), all_(all) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (i == index) {
      continue;
    }
    for (auto& group : all_[i]->param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        parameter.mutable_grad().reset();
        if (parameter.requires_grad()) {
          parameter.set_requires_grad(false);
          quiet_.push_back(parameter);
        }
      }
    }
  }
  state_.optimizers = {all_[index]};
  state_.due_optimizer = name;
  state_.task.set_due(state_.due_optimizer);
}

TUTTI_INLINE OwnTurn::~OwnTurn() {
  for (at::Tensor& parameter : quiet_) {
    parameter.set_requires_grad(true);
  }
  state_.optimizers = all_;
  state_.due_optimizer.clear();
  state_.task.set_due({});
}

}  // namespace tutti::train
