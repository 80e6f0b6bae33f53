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
#include <tutti/train/several.inl.hpp>
#endif
