// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include <boost/hana/basic_tuple.hpp>

#include <tutti/core/check.hpp>
#include <tutti/core/detail/order.hpp>
#include <tutti/core/detail/switched.hpp>

/// What is wrong with a pack of policies, found as plain numbers.
namespace tutti::detail {

// What may be wrong with a recipe. Mistakes are found as plain numbers and only the checks above
// that fail are instantiated, by Recipe itself, so that a compiler's message is short.
enum class Fault {
  none,
  no_policy,
  wrong_name,
  wrong_member,
  wrong_hook,
  wrong_events,
  no_action,
  twice,
  conflict,
  missing,
  cycle
};

struct Mistake {
  Fault fault = Fault::none;
  std::size_t policy = 0;  // position in the recipe
  std::size_t other = 0;   // position of the event, the other policy, the requirement
};

struct Mistakes {  // the first few
  std::array<Mistake, 3> list{};
  std::size_t size = 0;

  constexpr void add(Mistake mistake) {
    if (mistake.fault != Fault::none && size < list.size()) {
      list[size++] = mistake;
    }
  }
};

template <class P, class... Es>
consteval Mistake mistake_alone(std::size_t at, types<Es...>) {
  if constexpr (is_directive<P>) {
    return {};
  } else if constexpr (!std::is_class_v<P> || !std::is_move_constructible_v<P>) {
    return {Fault::no_policy, at};
  } else if constexpr (!RightNames<P>) {
    return {Fault::wrong_name, at};
  } else if constexpr (!RightMembers<P>) {
    return {Fault::wrong_member, at};
  } else {
    std::size_t event = 0;
    if (!((RightHook<P, Es> && ++event != 0) && ...)) {
      return {Fault::wrong_hook, at, event};
    }
    event = 0;
    if (!((RightEvent<P, Es> && ++event != 0) && ...)) {
      return {Fault::wrong_events, at, event};
    }
    return {acts_on_an_event<P> ? Fault::none : Fault::no_action, at};
  }
}

// A requirement of a policy that is not in the pack.
template <class... Ps>
consteval void add_missing(Mistakes& out, std::size_t at, std::initializer_list<Rule> required) {
  std::size_t k = 0;
  for (const Rule& rule : required) {
    const bool found = (denotes(rule.id.mark, facts<Ps>) || ...);
    out.add({found ? Fault::none : Fault::missing, at, k++});
  }
}

template <class P, class... Ps>
consteval void add_together(Mistakes& out, std::size_t at) {
  // The compilers' own word: std::is_same_v is a template for every pair.
  constexpr std::array<bool, sizeof...(Ps)> same{__is_same(P, Ps)...};
  std::size_t before = 0;
  for (std::size_t j = 0; j < at; ++j) {
    before += same[j] ? 1U : 0U;
  }
  if (before > 0) {  // reported once, at the second place
    out.add({before == 1 ? Fault::twice : Fault::none, at});
    return;
  }
  if constexpr (policy_traits<P>::rules.conflicts_with.size() > 0) {
    constexpr std::array<bool, sizeof...(Ps)> refused{!can_be_combined<P, Ps>...};
    constexpr std::array<bool, sizeof...(Ps)> refusing{refuses<Ps, P>()...};
    for (std::size_t j = 0; j < sizeof...(Ps); ++j) {  // mutual refusals once
      out.add({refused[j] && (at < j || !refusing[j]) ? Fault::conflict : Fault::none, at, j});
    }
  }
  add_missing<Ps...>(out, at, policy_traits<P>::rules.requires_policy);
}

template <class E, class... Ps>
consteval bool cyclic_at() {
  if constexpr (is_pinned<E, Ps...>()) {
    return PackAt<E, Ps...>::order.size < sizeof...(Ps);
  } else {
    return false;
  }
}

// The first event at which pins and rules contradict each other; all_events::size when none.
template <class... Ps, class... Es>
consteval std::size_t cyclic_event(types<Es...>) {
  std::size_t event = 0;
  if constexpr (any_pinned<Ps...>) {
    static_cast<void>(((!cyclic_at<Es, Ps...>() && ++event != 0) && ...));
  } else {
    event = sizeof...(Es);
  }
  return event;
}

template <class... Ps>
consteval Mistakes find_mistakes() {
  Mistakes out;
  std::size_t at = 0;
  (out.add(mistake_alone<Unswitched<Ps>>(at++, all_events{})), ...);
  if (out.size == 0) {
    at = 0;
    (add_together<Ps, Ps...>(out, at++), ...);
  }
  if (out.size == 0 && Pack<Ps...>::cyclic) {
    out.add({Fault::cycle});
  }
  if (out.size == 0) {
    const std::size_t event = cyclic_event<Ps...>(all_events{});
    out.add({event < all_events::size ? Fault::cycle : Fault::none, 0, event});
  }
  return out;
}

template <class A, class... Ps>
consteval void add_warnings([[maybe_unused]] Mistakes& out, [[maybe_unused]] std::size_t at) {
  if constexpr (policy_traits<A>::rules.warns_with.size() > 0) {
    std::size_t other = 0;
    const auto look = [&]<class B>(std::type_identity<B>) {
      if (warns<A, B>() && !(accepts<Ps, A, B> || ...)) {
        out.add({Fault::conflict, at, other});
      }
      ++other;
    };
    (look(std::type_identity<Ps>{}), ...);
  }
}

// Pairs to warn of, in a recipe without mistakes.
template <class... Ps>
consteval Mistakes find_warnings() {
  Mistakes out;
  [[maybe_unused]] std::size_t at = 0;
  (add_warnings<Ps, Ps...>(out, at++), ...);
  return out;
}

template <class... Ps>
inline constexpr Mistakes mistakes = find_mistakes<Ps...>();
template <class... Ps>
inline constexpr Mistakes warnings = find_warnings<Ps...>();

template <std::size_t I, class... Ps>
using nth = typename std::remove_cvref_t<decltype(boost::hana::at_c<I>(
    std::declval<boost::hana::basic_tuple<std::type_identity<Ps>...>&>()))>::type;
template <std::size_t I, class List>
struct Nth;
template <std::size_t I, class... Ts>
struct Nth<I, types<Ts...>> {
  using type = nth<I, Ts...>;
};

}  // namespace tutti::detail
