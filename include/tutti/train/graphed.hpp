#pragma once

#include <memory>
#include <string>

#include <c10/util/Exception.h>

#include <tutti/core/engine.hpp>
#include <tutti/core/graphs.hpp>
#include <tutti/core/on_or_auto.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/graphs.hpp>

/// A recipe's microbatches by graphs: which hooks are recorded and which are called around.
namespace tutti::train {

/// Why this run cannot have graphs, a sentence without its full stop; empty when it can.
template <class Engine>
std::string no_graphs_because(const State& state) {
  using Plan = GraphPlan<typename Engine::recipe>;
  const GraphSupport& support = graph_support();
  if (!Plan::possible) {
    return Plan::why_not();
  }
  if (state.device.type() != support.device) {
    return c10::str("graphs need a CUDA device, and the run is on ", state.device.str());
  }
  if (state.world_size > 1) {
    return c10::str("gradients are averaged over ", state.world_size,
                    " processes while they are computed, which is not recorded");
  }
  if (support.make == nullptr) {
    return "the program has no graphs: add #include <tutti/train/cuda_graphs.hpp> to the file that "
           "makes the Trainer, and build with TUTTI_WITH_CUDA=ON";
  }
  return {};
}

/// The graphs of the run; null when there are to be none.
/// Throws c10::ValueError when they are asked for and cannot be.
template <class Engine>
std::unique_ptr<Graphs> make_graphs(const OnOrAuto& wanted, const State& state) {
  if (!wanted) {
    return nullptr;
  }
  const std::string why_not = no_graphs_because<Engine>(state);
  TORCH_CHECK_VALUE(why_not.empty() || wanted.automatic, "cuda_graphs is true, but ", why_not,
                    "; set cuda_graphs to false, or to \"auto\" for graphs where they can be");
  return why_not.empty() ? std::make_unique<Graphs>(graph_support().make(state.device)) : nullptr;
}

/// One microbatch from behind BeforeForward to AfterBackward, with graphs.
template <class Engine>
class Graphed {
  using Plan = GraphPlan<typename Engine::recipe>;

 public:
  Graphed(Engine& engine, State& state, Graphs& graphs)
      : engine_(engine), state_(state), graphs_(graphs) {}

  /// share: of the batch's loss that is the microbatch's. step: has forward(), model_loss(),
  /// backward(share), and forward_to_backward(share), which does it all and fires the events.
  template <class Step>
  void operator()(Step& step, double share) {
    Graphs::let_go(state_);
    if (left_out(tutti::detail::graph_events{})) {
      graphs_.run(nullptr, [&] { step.forward_to_backward(share); });
      return;
    }
    GraphEntry& entry = graphs_.find(state_, share);
    if (!graphs_.ready(entry)) {
      graphs_.run(&entry, [&] { step.forward_to_backward(share); });
      return;
    }
    state_.outputs = entry.outputs;
    ahead(tutti::detail::graph_events{});
    const auto work = [this, &step, share] { recorded(step, share); };
    if (entry.graph == nullptr) {
      graphs_.record(entry, state_, work);
    } else if (entry.takes(state_.batch)) {
      graphs_.replay(entry, state_);
    } else {
      Graphs::let_go(state_);
      graphs_.run(nullptr, work);
    }
    behind(tutti::detail::graph_events{});
  }

 private:
  template <class... Es>
  [[nodiscard]] bool left_out(types<Es...>) const {
    return (left_out_at<Es>(typename Plan::template instead<Es>{}) || ...);
  }
  template <class E, class... Ps>
  [[nodiscard]] bool left_out_at(types<Ps...>) const {
    return (engine_.template get<Ps>().match(E{}, state_) || ...);
  }

  template <class... Es>
  void ahead(types<Es...>) {
    (engine_.template fire_some<Es>(state_, typename Plan::template ahead<Es>{}, false), ...);
  }
  template <class... Es>
  void behind(types<Es...>) {
    (engine_.template fire_some<Es>(state_, typename Plan::template behind<Es>{}, true), ...);
  }
  template <class E>
  void inside() {
    engine_.template fire_some<E>(state_, typename Plan::template inside<E>{}, false);
  }

  // What a graph has.
  template <class Step>
  void recorded(Step& step, double share) {
    step.forward();
    inside<AfterForward>();
    inside<BeforeLoss>();
    step.model_loss();
    inside<AfterLoss>();
    inside<BeforeBackward>();
    step.backward(share);
    inside<AfterBackward>();
  }

  Engine& engine_;
  State& state_;
  Graphs& graphs_;
};

}  // namespace tutti::train
