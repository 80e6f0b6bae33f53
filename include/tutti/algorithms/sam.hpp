// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/algorithms/detail/gradients.hpp>
#include <tutti/algorithms/detail/perturbed_weights.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/optim/closure.hpp>

/// SAM: sharpness-aware minimisation.
namespace tutti {

namespace functional {

/// Refuses a base of SAMOptimizer that cannot make its steps.
template <class O>
struct SAMBaseCheck {
  static_assert(!optim::ClosureOptimizer<O>,
                "tutti: this optimizer cannot be the base of a SAMOptimizer, since it calls a "
                "closure in its own step, as LBFGS does; take one that does not, like "
                "torch::optim::SGD.");
};

/// An optimizer's step along the gradient at the worst nearby weights, for a loop of one's own.
///
///     functional::SAMOptimizer sam(optimizer, 0.05);
///     at::Tensor loss = sam.step([&] {
///       optimizer->zero_grad();
///       at::Tensor loss = ...;
///       loss.backward();
///       return loss;
///     });
///
/// Source: Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization",
/// ICLR 2021, algorithm 1; MosaicML Composer, `composer.algorithms.sam.SAMOptimizer`.
class SAMOptimizer {
 public:
  /// base: makes the steps; its groups are read anew in every step. rho: how far to look, a
  /// 2-norm; >= 0. epsilon: added to the gradients' norm. interval: every how many steps to look;
  /// the others are base's; >= 1.
  /// Throws c10::Error (ValueError) when one is out of range, base is null or calls a closure in
  /// its own step, as LBFGS does.
  explicit SAMOptimizer(std::shared_ptr<torch::optim::Optimizer> base, double rho = 0.05,
                        double epsilon = 1e-12, std::int64_t interval = 1)
      : base_{std::move(base)}, rho_(rho), epsilon_(epsilon), interval_(interval) {
    TUTTI_CHECK_VALUE(base_.front(), "SAMOptimizer: the base optimizer is null");
    TUTTI_CHECK_VALUE(!optim::calls_closure(*base_.front()),
                      "SAMOptimizer: the base optimizer calls a closure in its own step, as LBFGS "
                      "does; take one that does not, like torch::optim::SGD");
    TUTTI_CHECK_VALUE(rho >= 0, "SAMOptimizer: rho is ", rho, ", expected 0 or more");
    TUTTI_CHECK_VALUE(interval >= 1, "SAMOptimizer: interval is ", interval,
                      ", expected 1 or more");
  }

  template <optim::ClosureOptimizer O>
  explicit SAMOptimizer(const std::shared_ptr<O>&, double = 0, double = 0, std::int64_t = 0) {
    static_assert(sizeof(SAMBaseCheck<O>) > 0);
  }

  /// One step.
  ///
  /// closure: clears the gradients, computes the loss, runs backward and returns the loss; called
  /// twice when this step looks around.
  /// Returns the first call's loss, that of the weights before the step.
  /// After an exception of the closure the weights are as before.
  template <class Closure>
  at::Tensor step(Closure&& closure) {
    at::Tensor loss = closure();
    if (++steps_ % interval_ == 0) {
      ::tutti::detail::Gradients uphill;
      ::tutti::detail::each_parameter(base_, [&](const at::Tensor& p) { uphill.add(p); });
      const ::tutti::detail::PerturbedWeights perturbed(uphill, memory_, rho_, epsilon_);
      closure();
    }
    base_.front()->step();
    return loss;
  }

  /// Steps made so far; the interval counts from here.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  std::vector<std::shared_ptr<torch::optim::Optimizer>> base_;
  double rho_;
  double epsilon_;
  std::int64_t interval_;
  std::int64_t steps_ = 0;
  ::tutti::detail::Copies memory_;
};

}  // namespace functional

/// Steps along the gradient at the worst weights within a distance of rho.
///
/// Every `interval`-th batch runs forward and backward twice: once to see where the loss rises
/// most, once there. Both passes see the same random draws. What the first reports counts as the
/// batch's loss and metrics. Of several ranks each looks along the gradients of its own examples;
/// of a sharded model all look along those of the whole batch.
/// Source: Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization",
/// ICLR 2021.
struct SAM final {
  double rho = 0.05;              ///< how far to look, a 2-norm over all weights; > 0
  double epsilon = 1e-12;         ///< added to the gradients' norm; > 0
  std::int64_t interval = 1;      ///< every how many batches to look; the others are plain; >= 1
  bool freeze_statistics = true;  ///< running statistics (buffers) learn in the first pass only

  /// What it holds while it runs; not an option.
  struct Run {
    std::int64_t steps = 0;                   ///< batches so far, skipped ones included
    bool moved = false;                       ///< shards stand elsewhere than the model's weights
    Lazy<detail::Copies> weights{};           ///< room for a second set of weights
    Lazy<detail::Copies> statistics{};        ///< likewise of buffers
    Lazy<std::vector<at::Tensor>> buffers{};  ///< the model's, once asked for
  } run{};

  static constexpr std::string_view name = "SAM";
  static constexpr About about{
      .no_graph = "trains in two passes, with the weights in other memory in each",
      .no_tensor_parallel = "it climbs along whole gradients, of which a rank has parts",
  };
  using events = types<AfterLoad>;
  static constexpr Rules rules{
      .tags = {id<uses_closure>},
      .conflicts_with = {{id<uses_closure>, "both would run forward and backward themselves"}},
      .works_with = {{id<draws_masks>, "both passes of a step draw the same masks"},
                     {id<uses_batch_statistics>, "running statistics learn in the first pass only"},
                     {id<freezes_parameters>, "frozen parameters are not moved"},
                     {id<clips_gradients>, "only the gradients that make the step are clipped"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(rho > 0, "SAM: rho", rho, "more than 0");
    expect(epsilon > 0, "SAM: epsilon", epsilon, "more than 0");
    expect(interval >= 1, "SAM: interval", interval, "1 or more");
  }

  /// The layers are final: forgets what is known of the model.
  void apply(AfterLoad, State&) { run.buffers.reset(); }

  /// One batch.
  ///
  /// closure: `bool (bool sync_gradients)`, forward and backward of the whole batch, false when
  /// gradients overflowed. update: `void ()`, the optimizers' step.
  /// An overflow in either pass, or an exception, leaves the weights as they were.
  template <class Closure, class Update>
  void step(State& state, Closure&& closure, Update&& update) {
    const bool looks = (run.steps + 1) % interval == 0;
    bring_whole(state);
    if (looks ? closure(false) && descend_from_above(state, closure) : closure(true)) {
      update();  // brings whole weights, too
      run.moved = false;
    }
    bring_whole(state);
    ++run.steps;
  }

  void save(Archive& archive) const { archive.put("steps", run.steps); }
  void load(const Archive& archive) { run.steps = archive.get<std::int64_t>("steps"); }

 private:
  template <class Closure>
  bool descend_from_above(State& state, Closure&& closure) {
    detail::Gradients uphill;
    detail::each_parameter(state.optimizers, [&](const at::Tensor& p) { uphill.add(p); });
    if (freeze_statistics && !run.buffers) {
      run.buffers = state.model->buffers();
    }
    const detail::SavedTensors saved(freeze_statistics ? *run.buffers : std::vector<at::Tensor>{},
                                     *run.statistics);
    dist::Communicator* const group =
        state.sharding != nullptr ? &state.sharding->shard_group() : nullptr;
    const detail::PerturbedWeights perturbed(uphill, *run.weights, rho, epsilon, group);
    run.moved = group != nullptr;
    bring_whole(state);
    run.moved = group != nullptr;  // they are moved back when this ends
    return closure(true);
  }

  // The shards were moved: the model gets what all ranks have now.
  void bring_whole(State& state) {
    if (std::exchange(run.moved, false)) {
      state.sharding->after_step();
    }
  }
};

}  // namespace tutti
