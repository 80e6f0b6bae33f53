// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <tutti/core/engine.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/any_engine.hpp>
#include <tutti/train/policy_states.hpp>

/// What a recipe's policies do to a step, known when the program compiles or asked of AnyEngine.
namespace tutti::train::detail {

using tutti::detail::TakesStep;

template <class Policies>
inline constexpr int step_takers = 0;
template <class... Ps>
inline constexpr int step_takers<types<Ps...>> = (0 + ... + int{TakesStep<Ps>});

template <class Engine>
inline constexpr bool one_takes_step = step_takers<typename Engine::policies> <= 1;
template <>
inline constexpr bool one_takes_step<AnyEngine> = true;  // seen where it was made

// No policy of the engine takes the step, or that is known when the program runs.
template <class Engine>
inline constexpr bool may_fold = step_takers<typename Engine::policies> == 0;
template <>
inline constexpr bool may_fold<AnyEngine> = true;

// Steps may be left out, or that is known when the program runs.
template <class Engine>
inline constexpr bool may_skip = any_skips_steps<typename Engine::policies>;
template <>
inline constexpr bool may_skip<AnyEngine> = true;

// Where no policy acts on an event, fire() does nothing; an engine that a policy brings may.
template <class Engine>
inline constexpr bool fires_policies_alone = false;
template <class... Ps>
inline constexpr bool fires_policies_alone<tutti::Engine<Ps...>> = !(Recorder<Ps> || ...);

// Nobody looks between the forward and the end of the backward, so that a model may do all in one.
template <class Engine>
constexpr bool is_undivided(const Engine& engine) {
  if constexpr (is_erased<Engine>) {
    return !engine.template acts_on<AfterForward>() && !engine.template acts_on<BeforeLoss>() &&
           !engine.template acts_on<AfterLoss>() && !engine.template acts_on<BeforeBackward>();
  } else {
    static_cast<void>(engine);
    using Recipe = typename Engine::recipe;
    return fires_policies_alone<Engine> && !Recipe::template handles<AfterForward> &&
           !Recipe::template handles<BeforeLoss> && !Recipe::template handles<AfterLoss> &&
           !Recipe::template handles<BeforeBackward>;
  }
}

// The name of the policy that takes the step into its own hands; empty when none does.
template <class... Ps>
constexpr std::string_view step_taker(types<Ps...>) {
  std::string_view name;
  ((name = TakesStep<Ps> ? name_of<Ps>() : name), ...);
  return name;
}

template <class Engine>
constexpr bool takes_step(const Engine& engine) {
  if constexpr (is_erased<Engine>) {
    return !engine.step_taker().empty();
  } else {
    static_cast<void>(engine);
    return step_takers<typename Engine::policies> > 0;
  }
}

template <class P, class Pass, class Update>
void take_step_of(P& policy, State& state, const Pass& pass, const Update& update) {
  if constexpr (TakesStep<P>) {
    policy.step(state, pass, update);
  }
}

// The policy that takes steps makes one.
template <class Engine, class Pass, class Update>
void take_step(Engine& engine, State& state, const Pass& pass, const Update& update) {
  if constexpr (is_erased<Engine>) {
    engine.take_step(state, pass, update);
  } else {
    [&]<class... Ps>(types<Ps...>) {
      (take_step_of(engine.template get<Ps>(), state, pass, update), ...);
    }(typename Engine::policies{});
  }
}

}  // namespace tutti::train::detail
