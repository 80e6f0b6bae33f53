// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/time.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/gradients.hpp>

/// DiLoCo: ranks train apart, and an outer optimizer follows the mean of their ways.
namespace tutti {

namespace functional {

/// The outer step of DiLoCo: SGD with Nesterov's momentum, whose gradient is how far the ranks'
/// mean has come from where they started together.
class OuterStep {
 public:
  OuterStep() = default;
  /// Keeps a copy of the trainable parameters, on the host, as where the ranks start.
  explicit OuterStep(const torch::nn::Module& model);

  /// Moves the start by lr * (gradient + momentum * velocity), gradient = start - mean of the
  /// ranks, velocity = momentum * velocity + gradient; and puts it into the model. A collective.
  void operator()(torch::nn::Module& model, dist::Communicator& group, double lr, double momentum);

  /// Where the ranks started, and the velocity; undefined before the first step with momentum.
  struct Outer {
    std::string name;
    at::Tensor start;
    at::Tensor velocity{};
  };
  [[nodiscard]] const std::vector<Outer>& parameters() const { return parameters_; }
  std::vector<Outer>& parameters() { return parameters_; }

 private:
  std::vector<Outer> parameters_;
};

}  // namespace functional

/// Trains each rank by itself for so many batches, then moves all to a new common start.
///
/// Gradients are never sent. The common start and its momentum are kept on the host. Before a
/// checkpoint, before an evaluation and at the end of fit() the outer step is made, too, so that
/// all ranks have the same parameters: let intervals of evaluation and saving be multiples of
/// `interval`.
/// Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
/// 2023, algorithm 1.
struct DiLoCo final {
  Time interval = "500ba";      ///< inner steps between two outer ones; in ba
  double outer_lr = 0.7;        ///< > 0
  double outer_momentum = 0.9;  ///< Nesterov's; in [0, 1)

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<functional::OuterStep> outer{};  ///< the weights and velocities of the outer optimizer
    std::int64_t since = 0;               ///< inner steps since the outer one
  } run{};

  static constexpr std::string_view name = "DiLoCo";
  static constexpr About about{
      .reads_batch = false,
      .no_sharding = "each rank trains a whole model of its own between two averages",
  };
  using events = types<FitStart, BatchEnd, EvalStart, FitEnd>;
  static constexpr Rules rules{
      .tags = {id<averages_ranks>},
      .runs_after = {{id<changes_model>, "it keeps a copy of the model's parameters"}},
      .conflicts_with = {{id<averages_ranks>, "both would decide when the ranks meet"},
                         {id<averages_weights>,
                          "each rank would average weights that no other rank has"},
                         {id<freezes_parameters>, "the outer step would move what is frozen"}},
  };

  /// Throws c10::ValueError when the options are out of range.
  constexpr void validate() const {
    expect(interval.unit() == TimeUnit::batch, "DiLoCo: interval", interval, "a time in ba");
    expect(interval.value() >= 1, "DiLoCo: interval", interval, "1ba or more");
    expect(outer_lr > 0, "DiLoCo: outer_lr", outer_lr, "more than 0");
    expect(outer_momentum >= 0 && outer_momentum < 1, "DiLoCo: outer_momentum", outer_momentum,
           "a number from 0 to below 1");
  }

  bool match(FitStart, const State&) const { return run.outer->parameters().empty(); }

  void apply(FitStart, State& state) { *run.outer = functional::OuterStep(*state.model); }
  void apply(BatchEnd, State& state) {
    if (++run.since >= interval.count()) {
      meet(state);
    }
  }
  void apply(EvalStart, State& state) { meet(state); }
  void apply(FitEnd, State& state) { meet(state); }

  void enter_checkpoint(State& state) { meet(state); }
  void leave_checkpoint(State&) {}

  /// Saves the common start and its velocity.
  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  void meet(State& state) {
    if (run.since > 0) {
      (*run.outer)(*state.model, *state.communicator, outer_lr, outer_momentum);
      run.since = 0;
    }
  }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/diloco.inl.hpp>
#endif
