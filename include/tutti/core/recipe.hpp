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

/// Refuses the same policy twice: its second copy would act on what the first has done.
template <class P, std::size_t Count>
struct UniqueCheck {
  static_assert(Count == 1,
                "tutti: the recipe lists this policy more than once, so it would act twice at "
                "every event; remove all but one.");
  static constexpr bool ok = true;
};

/// Refuses a policy that would never be called.
template <class P>
struct ActsCheck {
  static_assert(detail::handles_any<P, all_events> || LoggerDestination<P>,
                "tutti: this type is no policy, it acts on no event; give it an overload of "
                "void apply(Event, tutti::State&), for instance apply(tutti::BatchEnd, "
                "tutti::State&).");
  static constexpr bool ok = true;
};

/// Refuses two policies of which one declares that it cannot work beside the other.
template <class A, class B>
struct ConflictCheck {
  static_assert(!detail::conflict<A, B>(),
                "tutti: these two policies conflict (one lists the other in conflicts_with); "
                "remove one of them, or see its method card for an option that lifts the conflict.");
  static constexpr bool ok = true;
};

/// Refuses a recipe that lacks a policy which `P` requires.
template <class P, class Required, bool Present>
struct RequiredPolicyCheck {
  static_assert(Present,
                "tutti: the first of these policies requires the second (requires_policy), which "
                "the recipe lacks; add it.");
  static constexpr bool ok = true;
};

/// Refuses order rules that go round: the parameters run each before the next, the last before the
/// first.
template <class... Cycle>
struct OrderCycleCheck {
  static_assert(sizeof...(Cycle) == 0,
                "tutti: the order rules of these policies go round in a circle (each must run "
                "before the next, and the last before the first); remove one of their runs_before "
                "or runs_after.");
  static constexpr bool ok = true;
};

namespace detail {

template <class P, class... Es>
consteval bool hooks_ok(types<Es...>) {
  return (HookCheck<P, Es>::ok && ...) && (EventsCheck<P, Es>::ok && ...);
}

template <class P, class... Es>
consteval bool names_any(types<Es...>) {
  return (NamesEvent<P, Es> || ...);
}

template <class P>
consteval bool policy_ok() {
  if constexpr (std::is_same_v<P, reference_order>) {
    return true;
  } else if constexpr (!std::is_class_v<P> || !std::is_move_constructible_v<P>) {
    return PolicyCheck<P>::ok;
  } else if constexpr (names_any<P>(all_events{}) || requires { typename P::events; }) {
    return hooks_ok<P>(all_events{});
  } else {
    return ActsCheck<P>::ok;
  }
}

template <class P, class... Ps, class... Required>
consteval bool required_ok(types<Required...>) {
  return (RequiredPolicyCheck<P, Required, (means<Required, Ps> || ...)>::ok && ...);
}

template <class P, class... Ps>
consteval bool pairs_ok() {
  bool ok = UniqueCheck<P, (std::size_t{std::is_same_v<P, Ps>} + ...)>::ok;
  ok = ok && (ConflictCheck<P, Ps>::ok && ...);
  if constexpr (requires { typename P::requires_policy; }) {
    ok = ok && required_ok<P, Ps...>(typename P::requires_policy{});
  }
  return ok;
}

template <std::size_t I, class... Ps>
using nth = typename decltype(+boost::hana::at_c<I>(boost::hana::tuple_t<Ps...>))::type;

template <class... Ps, std::size_t... I>
consteval bool refuse_cycle(std::index_sequence<I...>) {
  return OrderCycleCheck<nth<cycle(Pack<Ps...>::edges).index[I], Ps...>...>::ok;
}

template <class... Ps>
consteval bool recipe_ok() {
  if constexpr (!(policy_ok<Ps>() && ...)) {
    return false;
  } else {
    bool ok = (pairs_ok<Ps, Ps...>() && ...);
    if constexpr (Pack<Ps...>::cyclic) {
      constexpr std::size_t length = cycle(Pack<Ps...>::edges).size;
      ok = ok && refuse_cycle<Ps...>(std::make_index_sequence<length>{});
    }
    return ok;
  }
}

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

template <class E, class... Ps>
struct OrderOf {
  static constexpr Order<sizeof...(Ps)> at = positions<E, Ps...>();
  template <std::size_t... I>
  static consteval auto list(std::index_sequence<I...>) {
    return types<nth<at.index[I], Ps...>...>{};
  }
  using type = decltype(list(std::make_index_sequence<at.size>{}));
};
template <class E>
struct OrderOf<E> {
  using type = types<>;
};

}  // namespace detail

/// The compile-time side of `Trainer<Policies...>`.
///
/// Naming any member checks the whole recipe and stops with one sentence per mistake; so
/// `static_assert(tutti::Recipe<MixUp, CutMix>::valid)` in a test is a recipe check.
template <class... Policies>
struct Recipe {
  /// True; a recipe that is not valid does not compile.
  static constexpr bool valid = detail::recipe_ok<Policies...>();

  /// How many policies the recipe has.
  static constexpr std::size_t size = sizeof...(Policies);

  /// Some policy has the type or the tag `T`.
  template <class T>
  static constexpr bool has = (detail::means<T, Policies> || ...);

  /// `types<...>` of the policies that act on `E`, in the order in which they run: algorithms, then
  /// callbacks, then loggers (at Init the other way round). Algorithms run as listed, after a stable
  /// sort by their order rules, and reversed at events whose name begins with "after_", so that what
  /// was done last is undone first.
  template <Event E>
  using order = typename detail::OrderOf<E, Policies...>::type;

  /// Some policy acts on `E`.
  template <Event E>
  static constexpr bool handles = order<E>::size > 0;
};

}  // namespace tutti
