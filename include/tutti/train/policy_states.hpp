// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/optim/averages.hpp>

namespace tutti::checkpoint {

class Saver;
class Mirror;

}  // namespace tutti::checkpoint

namespace tutti::train {

/// A policy of whatever type as checkpoints see it; lives no longer than the policy.
struct PolicyState {
  std::string_view name;
  bool logs = false;  ///< a logger: what it keeps is no part of the training
  void* policy = nullptr;
  Rng* rng = nullptr;                  ///< null: it draws nothing
  checkpoint::Saver* saver = nullptr;  ///< that it asks to write for; null: it has none, or is off
  checkpoint::Mirror* mirror = nullptr;  ///< that it wants told of what is written; null: none
  void (*save)(const void* policy, Archive& archive) = nullptr;  ///< null: it keeps nothing
  void (*load)(void* policy, const Archive& archive) = nullptr;  ///< null when save is
  /// What changed shapes while it ran does it again here, before weights are read; null: nothing
  /// did.
  void (*prepare_load)(void* policy, const Archive& archive, State& state) = nullptr;
  /// What load() has read takes effect, where that waits for AfterLoad: for a run that loads while
  /// it runs, in which that event is not fired; null: load() is enough.
  void (*take_loaded)(void* policy, State& state) = nullptr;
  /// What it keeps of whole parameters becomes parts, since the model's have; null: it keeps none.
  void (*take_shards)(void* policy, State& state) = nullptr;
  std::string_view parts{};  ///< where save() puts these
  /// It is on, and the model computes something else without it.
  bool required_on_load = false;
  /// Names of weights that checkpoints leave to the program that trains; null: none.
  std::vector<std::string> (*kept_elsewhere)(const void* policy, const State& state) = nullptr;
  /// Gives the model what a checkpoint is to hold, and takes it back; both null: nothing else than
  /// it has.
  void (*enter_checkpoint)(void* policy, State& state) = nullptr;
  void (*leave_checkpoint)(void* policy, State& state) = nullptr;
};

/// All policies of a recipe, in the order in which they run.
using PolicyStates = std::vector<PolicyState>;

/// `P` brings a saver of its own: it, or the policy inside a Switch, has checkpoint_saver().
template <class P>
inline constexpr bool has_saver = tutti::detail::HasSaver<tutti::detail::Unswitched<P>>;

/// `P` may have steps left out: it says so.
template <class P>
inline constexpr bool skips_steps = policy_traits<P>::about.skips_steps;
template <class Policies>
inline constexpr bool any_skips_steps = false;
template <class... Ps>
inline constexpr bool any_skips_steps<types<Ps...>> = (skips_steps<Ps> || ...);

/// While this lives, the model holds what the optimizers and the policies want in a checkpoint;
/// then everything is as it was, so that saving never changes training.
class CheckpointScope {
 public:
  CheckpointScope(const PolicyStates& policies, State& state)
      : averages_(state.optimizers), policies_(policies), state_(state) {
    for (const PolicyState& policy : policies_) {
      if (policy.enter_checkpoint != nullptr) {
        policy.enter_checkpoint(policy.policy, state_);
      }
    }
  }
  ~CheckpointScope() {
    for (auto policy = policies_.rbegin(); policy != policies_.rend(); ++policy) {
      if (policy->leave_checkpoint != nullptr) {
        policy->leave_checkpoint(policy->policy, state_);
      }
    }
  }
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

 private:
  optim::AveragesInUse averages_;
  const PolicyStates& policies_;
  State& state_;
};

namespace detail {

template <class P>
void add_checkpoint_hooks(PolicyState& out) {
  static_assert(tutti::detail::EntersCheckpoint<P> == tutti::detail::LeavesCheckpoint<P>,
                "tutti: this policy has only one of enter_checkpoint(State&) and "
                "leave_checkpoint(State&); write both.");
  if constexpr (tutti::detail::EntersCheckpoint<P> && tutti::detail::LeavesCheckpoint<P>) {
    out.enter_checkpoint = [](void* p, State& state) {
      static_cast<P*>(p)->enter_checkpoint(state);
    };
    out.leave_checkpoint = [](void* p, State& state) {
      static_cast<P*>(p)->leave_checkpoint(state);
    };
  }
}

}  // namespace detail

/// What checkpoints have to know of `policy`; after Init, since which its saver is valid.
template <class P>
PolicyState policy_state(P& policy) {
  PolicyState out{.name = name_of<P>(),
                  .logs = tutti::detail::deduce_role<P>() == Role::logger,
                  .policy = &policy,
                  .rng = rng_of(policy)};
  using Own = tutti::detail::Unswitched<P>;
  [[maybe_unused]] Own& inner = tutti::detail::unswitched(policy);
  if constexpr (has_saver<P>) {
    out.saver = tutti::detail::is_on(policy) ? &inner.checkpoint_saver() : nullptr;
  }
  if constexpr (tutti::detail::HasMirror<Own>) {
    out.mirror = tutti::detail::is_on(policy) ? &inner.checkpoint_mirror() : nullptr;
  }
  if constexpr (tutti::detail::Saves<P>) {
    out.save = [](const void* p, Archive& archive) { static_cast<const P*>(p)->save(archive); };
    out.load = [](void* p, const Archive& archive) { static_cast<P*>(p)->load(archive); };
  }
  if constexpr (tutti::detail::PreparesLoad<Own>) {
    out.prepare_load = [](void* p, const Archive& archive, State& state) {
      tutti::detail::unswitched(*static_cast<P*>(p)).prepare_load(archive, state);
    };
  }
  if constexpr (tutti::detail::TakesLoaded<Own>) {
    out.take_loaded = [](void* p, State& state) {
      if (tutti::detail::is_on(*static_cast<P*>(p))) {
        tutti::detail::unswitched(*static_cast<P*>(p)).take_loaded(state);
      }
    };
  }
  if constexpr (tutti::detail::TakesShards<Own>) {
    out.parts = policy_traits<P>::about.parts;
    out.take_shards = [](void* p, State& state) {
      tutti::detail::unswitched(*static_cast<P*>(p)).take_shards(state);
    };
  }
  if constexpr (tutti::detail::KeepsElsewhere<Own>) {
    out.kept_elsewhere = [](const void* p, const State& state) {
      const P& one = *static_cast<const P*>(p);
      return tutti::detail::is_on(one) ? tutti::detail::unswitched(one).kept_elsewhere(state)
                                       : std::vector<std::string>();
    };
  }
  if constexpr (policy_traits<P>::about.required_on_load) {
    out.required_on_load = tutti::detail::is_on(policy);
  }
  detail::add_checkpoint_hooks<P>(out);
  return out;
}

/// policy_state() of every policy of an engine.
template <class Engine>
PolicyStates policy_states(Engine& engine) {
  PolicyStates out;
  engine.for_each([&](auto& policy) { out.push_back(policy_state(policy)); });
  return out;
}

}  // namespace tutti::train

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class std::vector<tutti::train::PolicyState>;
#endif
