#pragma once

#include <string_view>
#include <vector>

#include <tutti/core/archive.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>

namespace tutti::checkpoint {

class Saver;
class Mirror;

}  // namespace tutti::checkpoint

namespace tutti::train {

/// A policy of whatever type as checkpoints see it; lives no longer than the policy.
struct PolicyState {
  std::string_view name;
  void* policy = nullptr;
  Rng* rng = nullptr;                  ///< null: it draws nothing
  checkpoint::Saver* saver = nullptr;  ///< that it asks to write for; null: it has none, or is off
  checkpoint::Mirror* mirror = nullptr;  ///< that it wants told of what is written; null: none
  void (*save)(const void* policy, Archive& archive) = nullptr;  ///< null: it keeps nothing
  void (*load)(void* policy, const Archive& archive) = nullptr;  ///< null when save is
  /// What changed shapes while it ran does it again here, before weights are read; null: nothing
  /// did.
  void (*prepare_load)(void* policy, const Archive& archive, State& state) = nullptr;
};

/// All policies of a recipe, in the order in which they run.
using PolicyStates = std::vector<PolicyState>;

/// `P` brings a saver of its own: it, or the policy inside a Switch, has checkpoint_saver().
template <class P>
inline constexpr bool has_saver = requires(P& policy) {
  policy.checkpoint_saver();
}
|| requires(P& policy) {
  policy.policy.checkpoint_saver();
};

/// `P` has `load(const Archive&)`.
template <class P>
inline constexpr bool loads = requires(P& policy, const Archive& archive) {
  policy.load(archive);
};

/// What checkpoints have to know of `policy`; after Init, since which its saver is valid.
template <class P>
PolicyState policy_state(P& policy) {
  PolicyState out{.name = name_of<P>(), .policy = &policy, .rng = rng_of(policy)};
  if constexpr (requires { policy.checkpoint_saver(); }) {
    out.saver = &policy.checkpoint_saver();
  } else if constexpr (has_saver<P>) {
    out.saver = policy.on ? &policy.policy.checkpoint_saver() : nullptr;
  }
  if constexpr (requires { policy.checkpoint_mirror(); }) {
    out.mirror = &policy.checkpoint_mirror();
  } else if constexpr (requires { policy.policy.checkpoint_mirror(); }) {
    out.mirror = policy.on ? &policy.policy.checkpoint_mirror() : nullptr;
  }
  if constexpr (requires(Archive & archive, const P& p) { p.save(archive); }) {
    static_assert(loads<P>,
                  "tutti: this policy has save(Archive&) but no load(const Archive&); write both.");
    if constexpr (loads<P>) {
      out.save = [](const void* p, Archive& archive) { static_cast<const P*>(p)->save(archive); };
      out.load = [](void* p, const Archive& archive) { static_cast<P*>(p)->load(archive); };
    }
  }
  if constexpr (requires(const Archive& archive, State& state) {
                  policy.prepare_load(archive, state);
                }) {
    out.prepare_load = [](void* p, const Archive& archive, State& state) {
      static_cast<P*>(p)->prepare_load(archive, state);
    };
  } else if constexpr (requires(const Archive& archive, State& state) {
                         policy.policy.prepare_load(archive, state);
                       }) {
    out.prepare_load = [](void* p, const Archive& archive, State& state) {  // inside a Switch
      static_cast<P*>(p)->policy.prepare_load(archive, state);
    };
  }
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
