// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <torch/optim/optimizer.h>

#include <tutti/core/engine.hpp>
#include <tutti/core/state.hpp>
#include <tutti/optim/closure.hpp>
#include <tutti/optim/fused_step.hpp>
#include <tutti/train/any_engine.hpp>
#include <tutti/train/run.hpp>

/// Which policies may leave their work to the optimizer's pass over memory: those whose result
/// nobody can tell from that of events in their order.
namespace tutti::train::detail {

template <class P, class E>
inline constexpr bool fuses_at =
    ::tutti::detail::holds(policy_traits<P>::about.fuses_into_step, id<E>);

template <class P, class E>
inline constexpr bool only_watches =
    role_of<P> != Role::algorithm ||
    ::tutti::detail::holds(policy_traits<P>::about.only_watches, id<E>);

template <class P>
inline constexpr bool may_read_gradients = policy_traits<P>::about.reads_gradients;

// P acts where gradients that have been stepped along are still there.
template <class P, class... Es>
consteval bool acts_beside_step(types<Es...>) {
  using in_pass = types<Init, BeforeLoad, AfterLoad, BeforeForward, AfterForward, BeforeLoss,
                        AfterLoss, BeforeBackward, AfterBackward, AfterTrainBatch>;
  return ((Handles<P, Es> && !::tutti::detail::contains<Es, in_pass>) || ...);
}
template <class P>
inline constexpr bool sees_gradients = may_read_gradients<P> && acts_beside_step<P>(all_events{});

// At AfterTrainBatch: one folds, and behind it nobody changes or reads a gradient.
template <class... Ps>
consteval bool gradients_fold(types<Ps...>) {
  if ((0 + ... + int{fuses_at<Ps, AfterTrainBatch>}) != 1) {
    return false;
  }
  [[maybe_unused]] bool folds = false;
  ((folds = fuses_at<Ps, AfterTrainBatch> ||
            (folds && only_watches<Ps, AfterTrainBatch> && !may_read_gradients<Ps>)),
   ...);
  return folds;
}

// At BatchEnd: P folds, and nobody ahead of it changes weights.
template <class P, class... Ps>
consteval bool averages_fold(types<Ps...>) {
  [[maybe_unused]] bool quiet = true;
  bool found = false;
  ((found = found || (quiet && std::is_same_v<P, Ps>), quiet = quiet && only_watches<Ps, BatchEnd>),
   ...);
  return found && fuses_at<P, BatchEnd>;
}

/// Which policies of an engine fold. Allowed: none of them takes the step into its own hands.
template <class Engine, bool Allowed, class Policies = typename Engine::policies>
struct Folding;
template <class Engine, bool Allowed, class... Ps>
struct Folding<Engine, Allowed, types<Ps...>> {
  using recipe = typename Engine::recipe;

  template <class P>
  static consteval bool joins() {
    return Allowed && averages_fold<P>(typename recipe::template order<BatchEnd>{});
  }

  static constexpr FoldPlan plan{
      .gradients = Allowed && gradients_fold(typename recipe::template order<AfterTrainBatch>{}),
      .averages = (joins<Ps>() || ...),
      .keep_gradients = (sees_gradients<Ps> || ...)};

  /// Leaves the averages to the pass.
  static void join(Engine& engine, optim::FusedStep& fused, const State& state) {
    (join_one<Ps>(engine, fused, state), ...);
  }

 private:
  template <class P>
  static void join_one(Engine& engine, optim::FusedStep& fused, const State& state) {
    if constexpr (joins<P>()) {
      engine.template get<P>().join(fused, state);
    }
  }
};

/// The optimizers' step with what is left to it. Costs nothing where no policy folds.
template <class Engine, bool Allowed>
class OptimizerStep {
 public:
  /// Just before AfterTrainBatch. finite: the gradients are, so that the step will follow.
  void offer(const Engine& engine, State& state, const Run& run, bool finite) {
    const FoldPlan plan = plan_of(engine);
    if (!plan) {
      return;
    }
    target_ = nullptr;
    state.fused_step = nullptr;
    if (!run.fold_into_optimizer || !finite || state.optimizers.size() != 1) {
      return;
    }
    target_ = dynamic_cast<optim::FusedStepOptimizer*>(state.optimizers.front().get());
    fused_ = {};
    fused_.keep_gradients = plan.keep_gradients;
    if (plan.gradients && target_ != nullptr) {
      state.fused_step = &fused_;
    }
  }

  void step(Engine& engine, State& state) {
    if (plan_of(engine)) {
      state.fused_step = nullptr;
      if (target_ != nullptr) {
        join(engine, state);
        target_->step(fused_);
        return;
      }
    }
    for (auto& optimizer : state.optimizers) {
      optim::step_without_closure(*optimizer);
    }
  }

 private:
  static constexpr FoldPlan plan_of(const Engine& engine) {
    if constexpr (is_erased<Engine>) {
      return engine.fold_plan();
    } else {
      static_cast<void>(engine);
      return Folding<Engine, Allowed>::plan;
    }
  }
  void join(Engine& engine, const State& state) {
    if constexpr (is_erased<Engine>) {
      engine.join(fused_, state);
    } else {
      Folding<Engine, Allowed>::join(engine, fused_, state);
    }
  }

  optim::FusedStepOptimizer* target_ = nullptr;
  optim::FusedStep fused_;
};

}  // namespace tutti::train::detail
