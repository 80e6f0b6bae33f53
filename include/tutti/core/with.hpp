#pragma once

#include <string_view>
#include <type_traits>

#include <tutti/core/policy.hpp>

namespace tutti {

namespace detail {

// Runs while the program is compiled; a value out of range does not compile.
template <class P>
constexpr bool hyperparameters_are_in_range(const P& policy) {
  if constexpr (requires { policy.validate(); }) {
    policy.validate();
  }
  return true;
}

}  // namespace detail

/// A policy with its hyperparameters as part of a recipe's type: `With<MixUp{.alpha = 0.3}>`.
///
/// In a recipe it is the policy, which starts with these values; `validate()` has run when the
/// program was compiled. The policy has only public members, of structural types; run-time parts
/// are in a Lazy.
template <auto V, bool Valid = detail::hyperparameters_are_in_range(V)>
struct With {
  /// The policy.
  using policy_type = std::remove_const_t<decltype(V)>;

  /// A policy with these hyperparameters.
  operator policy_type() const { return V; }
};

namespace detail {

// The policy that an entry of a recipe stands for: With's, or a const one's plain type.
template <class Entry>
struct BareEntry {
  using type = std::remove_const_t<Entry>;
  static constexpr bool plain = !std::is_const_v<Entry>;
};
template <auto V, bool Valid>
struct BareEntry<With<V, Valid>> {
  using type = std::remove_const_t<decltype(V)>;
  static constexpr bool plain = false;
};
template <class Entry>
using Bare = typename BareEntry<Entry>::type;

}  // namespace detail

}  // namespace tutti
