// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/rule.hpp>

namespace tutti {

template <class P, detail::Text Tag>
struct Switch;

/// A Switch is known by its type alone: a policy of a user's may have members of the same names.
namespace detail {

// The policy that a Switch turns on and off; P itself for any other.
template <class P>
struct InSwitch {
  using type = P;
};
template <class P, auto Tag>
struct InSwitch<Switch<P, Tag>> : InSwitch<P> {};
template <class P, auto Tag>
struct InSwitch<const Switch<P, Tag>> : InSwitch<const P> {};
template <class P>
using Unswitched = typename InSwitch<P>::type;

template <class P>
inline constexpr bool is_switch = false;
template <class P, auto Tag>
inline constexpr bool is_switch<Switch<P, Tag>> = true;
template <class P, auto Tag>
inline constexpr bool is_switch<const Switch<P, Tag>> = true;

template <class P>
constexpr auto& unswitched(P& policy) {
  if constexpr (is_switch<P>) {
    return unswitched(policy.policy);
  } else {
    return policy;
  }
}

// False for a Switch that is off, or that holds one.
template <class P>
constexpr bool is_on(const P& policy) {
  if constexpr (is_switch<P>) {
    return policy.on && is_on(policy.policy);
  } else {
    return true;
  }
}

}  // namespace detail

}  // namespace tutti
