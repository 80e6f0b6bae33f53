// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/graphs.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/train/any_engine.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/forward.hpp>
#include <tutti/train/fused_step.hpp>
#include <tutti/train/idle.hpp>
#include <tutti/train/loop.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/setup.hpp>
#include <tutti/train/sharding.hpp>
#include <tutti/train/step.hpp>

namespace tutti::train {

namespace detail {

// What AnyEngine::fire() is called for: the loop is that of the engine itself, or of AnyEngine.
#if defined(TUTTI_SEPARATE_COMPILATION)
using erased_events = all_events;
#else
using erased_events = types<Init, BeforeLoad, AfterLoad>;
#endif

}  // namespace detail

/// The engine of a recipe as an AnyEngine: all that a Trainer compiles for each recipe but the loop
/// itself, and with TUTTI_SEPARATE_COMPILATION all.
template <class Engine>
class EngineAdapter final : public AnyEngine {
  using Policies = typename Engine::policies;
  using Folds = detail::Folding<Engine, detail::may_fold<Engine>>;
  static_assert(sizeof(Step<Engine>) > 0);  // refuses what no step can do

 public:
  /// engine: has to live as long as this.
  explicit EngineAdapter(Engine& engine)
      : AnyEngine(fires(), detail::step_taker(Policies{}), Folds::plan), engine_(engine) {}

  void prepare(State& state) override {
    engine_.for_each([&state]<class P>(P& policy) {
      seed_policy(policy, state.seed);
      if constexpr (LoggerDestination<P>) {
        if (tutti::detail::is_on(policy)) {
          state.logger.add(policy);
        }
      }
    });
  }
  [[nodiscard]] tutti::detail::Constants constants(bool algorithms) const override {
    return policy_constants(engine_, algorithms);
  }
  [[nodiscard]] PolicyStates states() override { return policy_states(engine_); }
  [[nodiscard]] bool has_savers() const override { return has_savers_of(Policies{}); }
  void check_idle(bool has_evals, bool has_iterations) const override {
    train::check_idle(engine_, has_evals, has_iterations);
  }
  [[nodiscard]] bool leaves_parameters_unused() const override {
    bool unused = false;
    engine_.for_each([&](const auto& policy) { unused = unused || leaves_unused(policy); });
    return unused;
  }
  [[nodiscard]] bool averages_ranks() const override {
    bool averages = false;
    engine_.for_each([&](const auto& policy) { averages = averages || keeps_local(policy); });
    return averages;
  }
  [[nodiscard]] std::string why_no_graphs() const override {
    return GraphPlan<typename Engine::recipe>::why_not();
  }
  [[nodiscard]] std::string why_no_sharding(bool whole, bool spread) const override {
    std::string why;
    engine_.for_each([&]<class P>(const P& policy) {
      if (const auto own = train::why_no_sharding(policy, whole, spread); !own.empty()) {
        why.append(why.empty() ? "" : "; ").append(name_of<P>()).append(": ").append(own);
      }
    });
    return why;
  }
  void close(State& state) override { engine_.close(state); }
  [[nodiscard]] bool closed() const override { return engine_.closed(); }

#if !defined(TUTTI_SEPARATE_COMPILATION)
  void train(State& state, Run& run) override { Loop<Engine>(engine_, state, run)(); }
  void evaluate(State& state, Run& run, std::vector<EvalSet>& sets) override {
    evaluate_standalone(engine_, state, run, sets);
  }
  std::vector<Outputs> predict(State& state, DataSpec& data, std::int64_t subset,
                               bool return_outputs) override {
    return train::predict(engine_, state, data, subset, return_outputs);
  }
#else
  void record(std::string_view event, std::string_view what) override {
    engine_.record(event, what);
  }
  void allow_deferred(bool yes) override {
    if constexpr (requires { engine_.allow_deferred(yes); }) {
      engine_.allow_deferred(yes);
    }
  }
  [[nodiscard]] Loss loss(State& state) override {
    if constexpr (requires { engine_.loss(state); }) {
      return engine_.loss(state);
    } else {
      return train::loss(state);
    }
  }
  [[nodiscard]] std::vector<Rng*> rngs() override { return detail::rngs_of(engine_); }
  void take_step(State& state, c10::function_ref<bool(bool sync)> pass,
                 c10::function_ref<void()> update) override {
    detail::take_step(engine_, state, pass, update);
  }
  void join(optim::FusedStep& fused, const State& state) override {
    Folds::join(engine_, fused, state);
  }
  [[nodiscard]] bool left_out_of_graph(State& state) override {
    return GraphHooks<Engine>(engine_, state).left_out();
  }
  void ahead_of_graph(State& state) override { GraphHooks<Engine>(engine_, state).ahead(); }
  void in_graph(std::size_t event, State& state) override {
    in_graph(event, GraphHooks<Engine>(engine_, state), tutti::detail::graph_events{});
  }
  void behind_graph(State& state) override { GraphHooks<Engine>(engine_, state).behind(); }
#endif

 private:
  template <class E>
  static constexpr bool acts =
      (!detail::fires_policies_alone<Engine> || Engine::recipe::template handles<E>) &&  //
      tutti::detail::contains<E, detail::erased_events>;

  template <class E>
  static void fire_one(AnyEngine& self, State& state) {
    static_cast<EngineAdapter&>(self).engine_.template fire<E>(state);
  }
  template <class E>
  static constexpr Fire entry() {
    if constexpr (acts<E>) {
      return &fire_one<E>;
    } else {
      return nullptr;
    }
  }
  template <class... Es>
  static const Fire* table(types<Es...>) {
    static constexpr std::array<Fire, sizeof...(Es)> entries{entry<Es>()...};
    return entries.data();
  }
  static const Fire* fires() { return table(all_events{}); }

  template <class... Ps>
  static constexpr bool has_savers_of(types<Ps...>) {
    return (has_saver<Ps> || ...);
  }

#if defined(TUTTI_SEPARATE_COMPILATION)
  template <class... Es>
  static void in_graph(std::size_t event, GraphHooks<Engine> hooks, types<Es...>) {
    ((event == detail::event_index<Es> ? hooks.template inside<Es>() : void()), ...);
  }
#endif

  Engine& engine_;
};

}  // namespace tutti::train
