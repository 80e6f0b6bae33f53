#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include <boost/hana/at.hpp>
#include <boost/hana/tuple.hpp>
#include <boost/hana/type.hpp>

#include <tutti/core/detail/order.hpp>
#include <tutti/core/policy.hpp>

/// All that a list of policies says at compile time: whether it makes sense, and who runs when.
namespace tutti {

/// Put into a recipe to run algorithms exactly as MosaicML Composer 0.32 orders them: in the order
/// listed, reversed at events whose name begins with "after_", no rule of runs_before or runs_after
/// applied. For comparison runs; it does nothing itself.
struct reference_order final {
  static constexpr std::string_view name = "reference_order";
};

namespace detail {

// Their names and arguments are what a compiler prints first when a check below fails.
template <class P, std::size_t Count>
inline constexpr bool listed_once = Count == 1;
template <class P, class Required, bool Present>
inline constexpr bool requirement_is_met = Present;
template <class... Cycle>
inline constexpr bool no_circle = sizeof...(Cycle) == 0;

}  // namespace detail

/// Refuses the same policy twice: its second copy would act on what the first has done.
template <class P, std::size_t Count>
struct UniqueCheck {
  static_assert(detail::listed_once<P, Count>,
                "tutti: the recipe lists this policy more than once, so it would act twice at "
                "every event; remove all but one.");
};

/// Refuses two policies of which the first declares that it cannot work beside the second.
template <class A, class B>
struct ConflictCheck {
  static_assert(detail::can_be_combined<A, B>,
                "tutti: these two policies conflict (the first lists the second in "
                "conflicts_with); remove one of them, or see its method card for an option that "
                "lifts the conflict.");
};

/// Refuses a recipe that lacks a policy which `P` requires.
template <class P, class Required, bool Present>
struct RequiredPolicyCheck {
  static_assert(detail::requirement_is_met<P, Required, Present>,
                "tutti: the first of these policies requires the second (requires_policy), which "
                "the recipe lacks; add it.");
};

/// Refuses order rules that go round: the parameters run each before the next, the last before the
/// first.
template <class... Cycle>
struct OrderCycleCheck {
  static_assert(detail::no_circle<Cycle...>,
                "tutti: the order rules of these policies go round in a circle (each must run "
                "before the next, and the last before the first); remove one of their runs_before "
                "or runs_after.");
};

namespace detail {

// What may be wrong with a recipe. Mistakes are found as plain numbers and only the checks above
// that fail are instantiated, by Recipe itself, so that a compiler's message is short.
enum class Fault {
  none,
  no_policy,
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
  if constexpr (std::is_same_v<P, reference_order>) {
    return {};
  } else if constexpr (!std::is_class_v<P> || !std::is_move_constructible_v<P>) {
    return {Fault::no_policy, at};
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

template <class P>
consteval auto requirements_of() {
  if constexpr (requires { typename P::requires_policy; }) {
    return typename P::requires_policy{};
  } else {
    return types<>{};
  }
}

template <class Required, class... Ps>
inline constexpr bool has_any = (means<Required, Ps> || ...);

template <class... Ps, class... Required>
consteval void add_missing([[maybe_unused]] Mistakes& out, [[maybe_unused]] std::size_t at,
                           types<Required...>) {
  [[maybe_unused]] std::size_t k = 0;
  (out.add({has_any<Required, Ps...> ? Fault::none : Fault::missing, at, k++}), ...);
}

template <class P, class... Ps>
consteval void add_together(Mistakes& out, std::size_t at) {
  constexpr std::array<bool, sizeof...(Ps)> same{std::is_same_v<P, Ps>...};
  for (std::size_t j = 0; j < at; ++j) {
    if (same[j]) {  // reported once, at the second place
      std::size_t before = 0;
      for (std::size_t k = 0; k < at; ++k) {
        before += same[k] ? 1U : 0U;
      }
      out.add({before == 1 ? Fault::twice : Fault::none, at});
      return;
    }
  }
  if constexpr (requires { typename P::conflicts_with; }) {
    constexpr std::array<bool, sizeof...(Ps)> refused{!can_be_combined<P, Ps>...};
    constexpr std::array<bool, sizeof...(Ps)> refusing{refuses<Ps, P>()...};
    for (std::size_t j = 0; j < sizeof...(Ps); ++j) {  // mutual refusals once
      out.add({refused[j] && (at < j || !refusing[j]) ? Fault::conflict : Fault::none, at, j});
    }
  }
  add_missing<Ps...>(out, at, requirements_of<P>());
}

template <class... Ps>
consteval Mistakes find_mistakes() {
  Mistakes out;
  std::size_t at = 0;
  (out.add(mistake_alone<Ps>(at++, all_events{})), ...);
  if (out.size == 0) {
    at = 0;
    (add_together<Ps, Ps...>(out, at++), ...);
  }
  if (out.size == 0 && Pack<Ps...>::cyclic) {
    out.add({Fault::cycle});
  }
  return out;
}

template <class... Ps>
inline constexpr Mistakes mistakes = find_mistakes<Ps...>();

template <std::size_t I, class... Ps>
using nth = typename decltype(+boost::hana::at_c<I>(boost::hana::tuple_t<Ps...>))::type;
template <std::size_t I, class List>
struct Nth;
template <std::size_t I, class... Ts>
struct Nth<I, types<Ts...>> {
  using type = nth<I, Ts...>;
};

template <class... Ps, std::size_t... I>
consteval auto cycle_check(std::index_sequence<I...>) {
  return std::type_identity<OrderCycleCheck<nth<cycle(Pack<Ps...>::edges).index[I], Ps...>...>>{};
}

template <std::size_t I>
struct NoMistake {};

// The check that fails for mistake I; NoMistake when there are fewer.
template <std::size_t I, class... Ps>
consteval auto failing_check() {
  constexpr Mistake found = mistakes<Ps...>.list[I];
  if constexpr (found.fault == Fault::none) {
    return std::type_identity<NoMistake<I>>{};
  } else if constexpr (found.fault == Fault::cycle) {
    return cycle_check<Ps...>(std::make_index_sequence<cycle(Pack<Ps...>::edges).size>{});
  } else {
    using P = nth<found.policy, Ps...>;
    if constexpr (found.fault == Fault::no_policy) {
      return std::type_identity<PolicyCheck<P>>{};
    } else if constexpr (found.fault == Fault::wrong_hook) {
      return std::type_identity<HookCheck<P, typename Nth<found.other, all_events>::type>>{};
    } else if constexpr (found.fault == Fault::wrong_events) {
      return std::type_identity<EventsCheck<P, typename Nth<found.other, all_events>::type>>{};
    } else if constexpr (found.fault == Fault::no_action) {
      return std::type_identity<ActsCheck<P>>{};
    } else if constexpr (found.fault == Fault::twice) {
      return std::type_identity<UniqueCheck<P, (std::size_t{std::is_same_v<P, Ps>} + ...)>>{};
    } else if constexpr (found.fault == Fault::conflict) {
      return std::type_identity<ConflictCheck<P, nth<found.other, Ps...>>>{};
    } else {
      using Required = typename Nth<found.other, decltype(requirements_of<P>())>::type;
      return std::type_identity<RequiredPolicyCheck<P, Required, false>>{};
    }
  }
}

template <std::size_t I, class... Ps>
using Checked = typename decltype(failing_check<I, Ps...>())::type;

template <class P, class E>
consteval int rank_at() {  // -1: does not act; else who goes first at E
  if constexpr (!Handles<P, E>) {
    return -1;
  } else {
    const int role = static_cast<int>(role_of<P>);
    return std::is_same_v<E, Init> ? 2 - role : role;
  }
}

template <class E, class... Ps>
consteval Order<sizeof...(Ps)> positions() {
  constexpr std::size_t size = sizeof...(Ps);
  constexpr bool as_listed = (std::is_same_v<Ps, reference_order> || ...);
  constexpr bool reversed = E::name.starts_with("after_");
  constexpr int algorithms = std::is_same_v<E, Init> ? 2 : 0;
  constexpr std::array<int, size> rank{rank_at<Ps, E>()...};
  Order<size> out;
  for (int group = 0; group < 3; ++group) {
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t at = reversed && group == algorithms ? size - 1 - k : k;
      const std::size_t p = as_listed ? at : Pack<Ps...>::order.index[at];
      if (rank[p] == group) {
        out.index[out.size++] = p;
      }
    }
  }
  return out;
}

template <bool Sound, class E, class... Ps>
struct OrderOf {
  static constexpr Order<sizeof...(Ps)> at = positions<E, Ps...>();
  template <std::size_t... I>
  static consteval auto list(std::index_sequence<I...>) {
    return types<nth<at.index[I], Ps...>...>{};
  }
  using type = decltype(list(std::make_index_sequence<at.size>{}));
};
template <class E, class... Ps>
struct OrderOf<false, E, Ps...> {
  using type = types<>;
};
template <class E>
struct OrderOf<true, E> {
  using type = types<>;
};

}  // namespace detail

/// The compile-time side of `Trainer<Policies...>`.
///
/// Naming any member checks the whole recipe and stops with one sentence per mistake, the first
/// three of them; so `static_assert(tutti::Recipe<MixUp, CutMix>::valid)` in a test is a recipe
/// check.
template <class... Policies>
struct Recipe : detail::Checked<0, Policies...>,
                detail::Checked<1, Policies...>,
                detail::Checked<2, Policies...> {
  /// True; a recipe that is not valid does not compile.
  static constexpr bool valid = true;

  /// How many policies the recipe has.
  static constexpr std::size_t size = sizeof...(Policies);

  /// Some policy has the type or the tag `T`.
  template <class T>
  static constexpr bool has = (detail::means<T, Policies> || ...);

  /// `types<...>` of the policies that act on `E`, in the order in which they run: algorithms, then
  /// callbacks, then loggers (at Init the other way round). Algorithms run as listed, after a
  /// stable sort by their order rules, and reversed at events whose name begins with "after_", so
  /// that what was done last is undone first.
  template <Event E>
  using order =
      typename detail::OrderOf<detail::mistakes<Policies...>.size == 0, E, Policies...>::type;

  /// Some policy acts on `E`.
  template <Event E>
  static constexpr bool handles = order<E>::size > 0;
};

}  // namespace tutti
