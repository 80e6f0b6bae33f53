// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/graphs.hpp>
#include <tutti/core/on_or_auto.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/any_engine.hpp>
#include <tutti/train/detail/graph_support.hpp>

/// A recipe's microbatches by graphs: which hooks are recorded and which are called around.
namespace tutti::train {

/// Why this run cannot have graphs, a sentence without its full stop; empty when it can.
/// recipe: why the recipe cannot.
inline std::string no_graphs_because(std::string recipe, const State& state) {
  const GraphSupport& support = graph_support();
  if (!recipe.empty()) {
    return recipe;
  }
  if (state.device.type() != support.device) {
    return "graphs need a CUDA device, and the run is on " + state.device.str();
  }
  if (state.world_size > 1) {
    return "gradients are averaged over " + std::to_string(state.world_size) +
           " processes while they are computed, which is not recorded";
  }
  if (support.make == nullptr) {
    return "the program has no graphs: add #include <tutti/train/cuda_graphs.hpp> to the file that "
           "makes the Trainer, and build with TUTTI_WITH_CUDA=ON";
  }
  return {};
}

/// The graphs of the run; null when there are to be none. recipe: why the recipe cannot have any.
/// Throws c10::ValueError when they are asked for and cannot be.
inline std::unique_ptr<StepGraphs> make_graphs(const OnOrAuto& wanted, std::string recipe,
                                               const State& state) {
  const std::string why_not = no_graphs_because(std::move(recipe), state);
  TUTTI_CHECK_VALUE(why_not.empty() || wanted.automatic, "cuda_graphs is true, but ", why_not,
                    "; set cuda_graphs to false, or to \"auto\" for graphs where they can be");
  return why_not.empty() ? graph_support().make(state.device) : nullptr;
}

/// The hooks of an engine's policies around a graph; nothing where the recipe cannot have graphs.
template <class Engine>
class GraphHooks {
  using Plan = GraphPlan<typename Engine::recipe>;
  using Events = tutti::detail::graph_events;

 public:
  GraphHooks(Engine& engine, State& state) : engine_(engine), state_(state) {}

  /// A policy wants this microbatch to be trained without a graph.
  [[nodiscard]] bool left_out() const { return left_out(Events{}); }
  void ahead() { ahead(Events{}); }
  template <Event E>
  void inside() {
    if constexpr (Plan::possible) {
      engine_.template fire_some<E>(state_, typename Plan::template inside<E>{}, false);
    }
  }
  void behind() { behind(Events{}); }

 private:
  template <class... Es>
  [[nodiscard]] bool left_out(types<Es...>) const {
    if constexpr (Plan::possible) {
      return (left_out_at<Es>(typename Plan::template instead<Es>{}) || ...);
    } else {
      return true;
    }
  }
  template <class E, class... Ps>
  [[nodiscard]] bool left_out_at(types<Ps...>) const {
    return (engine_.template get<Ps>().match(E{}, state_) || ...);
  }

  template <class... Es>
  void ahead(types<Es...>) {
    if constexpr (Plan::possible) {
      (engine_.template fire_some<Es>(state_, typename Plan::template ahead<Es>{}, false), ...);
    }
  }
  template <class... Es>
  void behind(types<Es...>) {
    if constexpr (Plan::possible) {
      (engine_.template fire_some<Es>(state_, typename Plan::template behind<Es>{}, true), ...);
    }
  }

  Engine& engine_;
  State& state_;
};

#if defined(TUTTI_SEPARATE_COMPILATION)
/// Those of an engine that is asked when the program runs.
template <>
class GraphHooks<AnyEngine> {
 public:
  GraphHooks(AnyEngine& engine, State& state) : engine_(engine), state_(state) {}

  [[nodiscard]] bool left_out() const { return engine_.left_out_of_graph(state_); }
  void ahead() { engine_.ahead_of_graph(state_); }
  template <Event E>
  void inside() {
    engine_.in_graph(detail::event_index<E>, state_);
  }
  void behind() { engine_.behind_graph(state_); }

 private:
  AnyEngine& engine_;
  State& state_;
};
#endif

/// What of a microbatch is recorded and what is called around it, for the recipe of an engine.
/// Step: has forward(), model_loss(), backward(share), and forward_to_backward(share), which does
/// it all and fires the events.
template <class Engine, class Step>
class Graphed final : public GraphWork {
 public:
  Graphed(Engine& engine, State& state, Step& step) : hooks_(engine, state), step_(step) {}

  [[nodiscard]] bool left_out() const override { return hooks_.left_out(); }
  void eager(double share) override { step_.forward_to_backward(share); }
  void ahead() override { hooks_.ahead(); }
  void recorded(double share) override {
    step_.forward();
    hooks_.template inside<AfterForward>();
    hooks_.template inside<BeforeLoss>();
    step_.model_loss();
    hooks_.template inside<AfterLoss>();
    hooks_.template inside<BeforeBackward>();
    step_.backward(share);
    hooks_.template inside<AfterBackward>();
  }
  void behind() override { hooks_.behind(); }

 private:
  GraphHooks<Engine> hooks_;
  Step& step_;
};

}  // namespace tutti::train
