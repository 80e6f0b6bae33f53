// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

#include <tutti/core/detail/fields.hpp>
#include <tutti/core/policy.hpp>

namespace tutti {

namespace detail {

// Can be evaluated while the program is compiled only for values in range.
template <class P>
consteval bool hyperparameters_are_in_range(const P& policy) {
  if constexpr (Validates<P>) {
    policy.validate();
  }
  return true;
}
template <auto V>
inline constexpr bool in_range =
    requires { typename std::bool_constant<hyperparameters_are_in_range(V)>; };

// `V` with the default value of its member `I`.
template <auto V, std::size_t I>
consteval auto without_member() {
  auto policy = V;
  auto fresh = decltype(policy){};
  std::get<I>(tie_fields(policy)) = std::get<I>(tie_fields(fresh));
  return policy;
}

struct Together {};  // no single member is out of range: they do not go together

// The address of the member of `V` that is out of range: the first whose default would do instead.
template <auto V, std::size_t I = 0>
consteval auto culprit() {
  using P = std::remove_const_t<decltype(V)>;
  if constexpr (in_range<V> || !std::is_default_constructible_v<P> || !has_fields<P>()) {
    return Together{};
  } else if constexpr (I == count_fields<P>()) {
    return Together{};
  } else if constexpr (in_range<without_member<V, I>()>) {
    return field_pointer<P, I>();
  } else {
    return culprit<V, I + 1>();
  }
}

// The same; Clang's message begins with these parameters.
template <class P, auto V, auto... Member>
inline constexpr bool accepted = in_range<V>;

}  // namespace detail

/// Refuses hyperparameters that the policy's validate() does not accept; `Member` ends in the name
/// of the wrong one.
template <class P, auto Values, auto Member>
struct HyperparameterCheck {
  static_assert(detail::accepted<P, Values, Member>,
                "tutti: a hyperparameter of this policy is out of its range; the check's last "
                "parameter names it, and its range stands beside it in the policy's header and on "
                "its method card.");
};
template <class P, auto Values>
struct HyperparameterCheck<P, Values, detail::Together{}> {
  static_assert(detail::accepted<P, Values>,
                "tutti: these hyperparameters of the policy do not go together, or one of them is "
                "out of its range; what is right stands in the policy's validate() and on its "
                "method card.");
};

template <auto V>
struct With;

namespace detail {

// The policy that an entry of a recipe stands for: With's, or a const one's plain type.
template <class Entry>
struct BareEntry {
  using type = std::remove_const_t<Entry>;
  static constexpr bool plain = !std::is_const_v<Entry>;
};
template <auto V>
struct BareEntry<With<V>> {
  using type = std::remove_const_t<decltype(V)>;
  using check = HyperparameterCheck<type, V, culprit<V>()>;
  static constexpr bool plain = false;
};
template <class Entry>
using Bare = typename BareEntry<Entry>::type;

}  // namespace detail

/// A policy with its hyperparameters as part of a recipe's type: `With<MixUp{.alpha = 0.3}>`.
///
/// In a recipe it is the policy, which starts with these values; `validate()` has run when the
/// program was compiled. The policy has only public members, of structural types; run-time parts
/// are in a Lazy.
template <auto V>
struct With {
  static_assert(sizeof(typename detail::BareEntry<With>::check) > 0);

  /// The policy.
  using policy_type = std::remove_const_t<decltype(V)>;

  /// A policy with these hyperparameters.
  operator policy_type() const { return V; }
};

}  // namespace tutti
