// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/optim/closure.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/schedule.hpp>

namespace tutti {

/// One of several optimizers of a run, each with parameters of its own, as a GAN or an actor and
/// its critic have them:
///
///     .optimizers = {{"discriminator", DecoupledAdamW{.lr = 2e-4}, {"discriminator.*"}},
///                    {"generator", DecoupledAdamW{.lr = 1e-4}, {"generator.*"}}}
///
/// In every batch those that are due take turns in the order of the list: forward, loss and
/// backward for one optimizer alone, then its step. The model is told whose turn it is:
/// `loss(outputs, batch, name)` and, where it wants, `forward(batch, name)`.
struct NamedOptimizer {
  std::string name{};                     ///< in logs, and what the model is told
  OptimizerSpec optimizer{};              ///< as TrainerOptions::optimizer
  std::vector<std::string> parameters{};  ///< globs of the model's parameters that it trains
  /// Whether it is due in this batch: `[](const State& s) { return s.timestamp.batch % 5 == 0; }`.
  /// Default: in every one. All ranks have to say the same.
  std::function<bool(const State&)> when{};
  Schedule schedule{};  ///< default: TrainerOptions::schedule
};

namespace train {

/// What the loop needs of an optimizer that takes turns.
struct Turn {
  std::string name;
  std::function<bool(const State&)> when;  ///< empty: always
  Schedule schedule;                       ///< empty: a constant rate
  bool own_schedule = false;               ///< it is not the run's
};

/// The optimizers of a run that has several.
///
/// Throws c10::ValueError when names are empty or appear twice, a glob matches nothing, a parameter
/// is of two optimizers or, though it is trained, of none, or an optimizer calls a closure.
std::vector<std::shared_ptr<torch::optim::Optimizer>> build_several(
    const std::vector<NamedOptimizer>& several, torch::nn::Module& model);

/// Gives the run its several optimizers and their names, and returns their turns, in the same
/// order. Throws like build_several().
std::vector<Turn> begin_turns(const std::vector<NamedOptimizer>& several, State& state);

/// Whether the run's optimizer calls a closure in its step.
/// Throws c10::Error when it does and is not the only one.
bool only_one_calls_closure(
    const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers);

/// While this lives one of several optimizers has its turn: it is the only one in
/// State::optimizers, the parameters of the others need no gradient and have none, and the model
/// is told.
class OwnTurn {
 public:
  /// all: of the run, in whose order `index` counts.
  OwnTurn(State& state, const std::vector<std::shared_ptr<torch::optim::Optimizer>>& all,
          std::size_t index, const std::string& name);
  ~OwnTurn();
  OwnTurn(const OwnTurn&) = delete;
  OwnTurn& operator=(const OwnTurn&) = delete;

 private:
  State& state_;
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& all_;
  std::vector<at::Tensor> quiet_;  // what needed a gradient before
};

}  // namespace train

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
