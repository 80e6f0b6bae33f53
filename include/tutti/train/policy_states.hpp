#pragma once

#include <string_view>
#include <vector>

#include <tutti/core/archive.hpp>
#include <tutti/core/detail/switched.hpp>
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
inline constexpr bool has_saver = requires(tutti::detail::Unswitched<P>& policy) {
  policy.checkpoint_saver();
};

/// What checkpoints have to know of `policy`; after Init, since which its saver is valid.
template <class P>
PolicyState policy_state(P& policy) {
  PolicyState out{.name = name_of<P>(), .policy = &policy, .rng = rng_of(policy)};
  auto& inner = tutti::detail::unswitched(policy);
  if constexpr (has_saver<P>) {
    out.saver = tutti::detail::is_on(policy) ? &inner.checkpoint_saver() : nullptr;
  }
  if constexpr (requires { inner.checkpoint_mirror(); }) {
    out.mirror = tutti::detail::is_on(policy) ? &inner.checkpoint_mirror() : nullptr;
  }
  if constexpr (requires(Archive & archive, const P& p) { p.save(archive); }) {
    out.save = [](const void* p, Archive& archive) { static_cast<const P*>(p)->save(archive); };
    out.load = [](void* p, const Archive& archive) { static_cast<P*>(p)->load(archive); };
  }
  if constexpr (requires(const Archive& archive, State& state) {
                  inner.prepare_load(archive, state);
                }) {
    out.prepare_load = [](void* p, const Archive& archive, State& state) {
      tutti::detail::unswitched(*static_cast<P*>(p)).prepare_load(archive, state);
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
