// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/check.hpp>  // first, so that compilers print a short way to its checks

#include <tutti/core/detail/mistakes.hpp>
#include <tutti/core/detail/plan.hpp>
#include <tutti/core/with.hpp>

/// All that a list of policies says at compile time: whether it makes sense, and who runs when.
namespace tutti {

namespace detail {

// Their names and arguments are what a compiler prints first when a check below fails.
template <class P, std::size_t Count>
inline constexpr bool listed_once = Count == 1;

// GCC prints texts among template arguments; Clang before 18 prints numbers instead.
#if defined(__clang__) && __clang_major__ < 18
inline constexpr bool prints_texts = false;
#else
inline constexpr bool prints_texts = true;
#endif

// The check of A and B with its reason, where there is one and the compiler can show it; Reason is
// a function that returns it.
template <template <class, class, auto...> class Check, class A, class B, class Reason>
consteval auto with_reason(Reason) {
  constexpr std::string_view reason = Reason{}();
  if constexpr (prints_texts && !reason.empty()) {
    return std::type_identity<Check<A, B, Text<reason.size() + 1>(reason)>>{};
  } else {
    return std::type_identity<Check<A, B>>{};
  }
}

template <class P, auto Required, bool Present>
inline constexpr bool requirement_is_met = Present;
template <class... Cycle>
inline constexpr bool no_circle = sizeof...(Cycle) == 0;

}  // namespace detail

/// Refuses the same policy twice: its second copy would act on what the first has done.
template <class P, std::size_t Count>
struct UniqueCheck {
  static_assert(detail::listed_once<P, Count>,
                "tutti: the recipe lists this policy more than once, so it would act twice at "
                "every event; remove all but one, or give the others names of their own: "
                "tutti::named<\"second\">(policy).");
};

/// Refuses two policies of which the first declares that it cannot work beside the second.
template <class A, class B, auto... Reason>
struct ConflictCheck {
  static_assert(detail::can_be_combined<A, B>,
                "tutti: these two policies conflict (the first lists the second in "
                "conflicts_with); remove one of them, or see its method card for an option that "
                "lifts the conflict.");
};

namespace detail {

// nodiscard makes a warning with words of ours; that of deprecated is longer, by where it stands.
template <class A, class B>
struct Pair {
  [[nodiscard(
      "tutti: these two policies work against each other (the first lists the second in "
      "warns_with); remove one, or put tutti::accept<A, B> into the recipe to say that it is "
      "meant.")]] static constexpr bool
  work_together() {
    return true;
  }
};

}  // namespace detail

/// Warns of two policies of which the first declares that they work against each other.
template <class A, class B, auto... Reason>
struct WarnCheck {
  static constexpr bool warned() {
    detail::Pair<A, B>::work_together();
    return true;
  }
};

/// Refuses a recipe that lacks a policy which `P` requires; `Required` has its name, or its tag's.
template <class P, auto Required, bool Present>
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

template <class Graph, class... Ps, std::size_t... I>
consteval auto cycle_check(std::index_sequence<I...>) {
  return std::type_identity<OrderCycleCheck<nth<cycle(Graph::edges).index[I], Ps...>...>>{};
}

// The reason that a list of rules, which has one about P, gives for it.
template <class P>
consteval std::string_view reason_for(std::initializer_list<Rule> list) {
  return (list.begin() + find_rule(list, facts<P>))->reason;
}
template <class A, class B>
consteval std::string_view conflict_reason() {
  if constexpr (refuses<A, B>()) {
    return reason_for<B>(policy_traits<A>::rules.conflicts_with);
  } else {
    return reason_for<A>(policy_traits<B>::rules.conflicts_with);
  }
}
template <class A, class B>
consteval std::string_view warning_reason() {
  return reason_for<B>(policy_traits<A>::rules.warns_with);
}

// The check of P's first member that is wrong.
template <class P>
consteval auto member_check() {
  constexpr auto first = [](const auto& wrong) {
    return static_cast<std::size_t>(std::find(wrong.begin(), wrong.end(), true) - wrong.begin());
  };
  constexpr std::size_t missed = first(near_misses<P>);
  constexpr std::size_t rule = first(old_rules<P>);
  constexpr std::size_t fact = first(old_facts<P>);
  constexpr std::size_t value = first(no_values<P>);
  constexpr std::size_t method = first(miscalled<P>);
  if constexpr (missed < near_misses<P>.size()) {
    using Miss = typename Nth<missed, member::near_misses>::type;
    return std::type_identity<MemberCheck<P, typename Miss::wrong, typename Miss::right>>{};
  } else if constexpr (rule < old_rules<P>.size()) {
    return std::type_identity<
        FieldCheck<P, typename Nth<rule, member::rules_fields>::type, Rules>>{};
  } else if constexpr (fact < old_facts<P>.size()) {
    return std::type_identity<
        FieldCheck<P, typename Nth<fact, member::about_fields>::type, About>>{};
  } else if constexpr (value < no_values<P>.size()) {
    return std::type_identity<ValueCheck<P, typename Nth<value, member::values>::type>>{};
  } else if constexpr (method < miscalled<P>.size()) {
    return std::type_identity<MethodCheck<P, typename Nth<method, member::methods>::type>>{};
  } else {
    return std::type_identity<SaveCheck<P>>{};
  }
}

template <std::size_t I>
struct NoMistake {};

// The check that fails for mistake I; NoMistake when there are fewer.
template <std::size_t I, class... Ps>
consteval auto failing_check() {
  // Numbers, since GCC 13.3 cannot copy a constant of a class out of another.
  constexpr Fault fault = mistakes<Ps...>.list[I].fault;
  constexpr std::size_t policy = mistakes<Ps...>.list[I].policy;
  constexpr std::size_t other = mistakes<Ps...>.list[I].other;
  if constexpr (fault == Fault::none) {
    return std::type_identity<NoMistake<I>>{};
  } else if constexpr (fault == Fault::cycle) {
    if constexpr (Pack<Ps...>::cyclic) {
      using Graph = Pack<Ps...>;
      return cycle_check<Graph, Ps...>(std::make_index_sequence<cycle(Graph::edges).size>{});
    } else {  // only with the pins of one event
      using Graph = PackAt<typename Nth<other, all_events>::type, Ps...>;
      return cycle_check<Graph, Ps...>(std::make_index_sequence<cycle(Graph::edges).size>{});
    }
  } else {
    using P = nth<policy, Ps...>;
    using Inner = Unswitched<P>;
    if constexpr (fault == Fault::no_policy) {
      return std::type_identity<PolicyCheck<Inner>>{};
    } else if constexpr (fault == Fault::wrong_name) {
      return std::type_identity<NameCheck<Inner>>{};
    } else if constexpr (fault == Fault::wrong_member) {
      return member_check<Inner>();
    } else if constexpr (fault == Fault::wrong_hook) {
      return std::type_identity<HookCheck<Inner, typename Nth<other, all_events>::type>>{};
    } else if constexpr (fault == Fault::wrong_events) {
      return std::type_identity<EventsCheck<Inner, typename Nth<other, all_events>::type>>{};
    } else if constexpr (fault == Fault::no_action) {
      return std::type_identity<ActsCheck<Inner>>{};
    } else if constexpr (fault == Fault::twice) {
      return std::type_identity<UniqueCheck<P, (std::size_t{std::is_same_v<P, Ps>} + ...)>>{};
    } else if constexpr (fault == Fault::conflict) {
      using B = nth<other, Ps...>;
      return with_reason<ConflictCheck, P, B>([] { return conflict_reason<P, B>(); });
    } else {
      constexpr const char* required =
          (policy_traits<P>::rules.requires_policy.begin() + other)->id.mark;
      return std::type_identity<RequiredPolicyCheck<P, required, false>>{};
    }
  }
}

template <std::size_t I, class... Ps>
using Checked = typename decltype(failing_check<I, Ps...>())::type;

struct NoWarning {
  static constexpr bool warned() { return true; }
};

// The check that warns of pair I; NoWarning when there are fewer.
template <std::size_t I, class... Ps>
consteval auto warning_check() {
  if constexpr (mistakes<Ps...>.size > 0) {
    return std::type_identity<NoWarning>{};
  } else {
    if constexpr (warnings<Ps...>.list[I].fault == Fault::none) {
      return std::type_identity<NoWarning>{};
    } else {
      using A = nth<warnings<Ps...>.list[I].policy, Ps...>;
      using B = nth<warnings<Ps...>.list[I].other, Ps...>;
      return with_reason<WarnCheck, A, B>([] { return warning_reason<A, B>(); });
    }
  }
}
template <std::size_t I, class... Ps>
using Warned = typename decltype(warning_check<I, Ps...>())::type;

template <class P, class... Es>
consteval std::size_t not_const(types<Es...>) {  // position of the first hook that is not const
  std::size_t event = 0;
  static_cast<void>(((apply_is_const<P, Es> && ++event != 0) && ...));
  return event;
}

// Checks an entry as written: With's hyperparameters, the hooks of a const policy.
template <class Entry>
consteval auto entry_check() {
  using P = Bare<Entry>;
  constexpr std::size_t at = not_const<P>(all_events{});
  if constexpr (std::is_const_v<Entry> && at < all_events::size) {
    return std::type_identity<ConstCheck<P, typename Nth<at, all_events>::type>>{};
  } else if constexpr (std::is_same_v<Entry, P> || std::is_const_v<Entry>) {
    return std::type_identity<types<Entry>>{};
  } else {
    return std::type_identity<typename BareEntry<Entry>::check>{};
  }
}
template <class Entry>
using EntryCheck = typename decltype(entry_check<Entry>())::type;

template <class... Ps>
inline constexpr std::array<Role, sizeof...(Ps)> roles{deduce_role<Ps>()...};

// Composer's order of the algorithms: as listed, but for two of them.
template <class... Ps>
consteval Order<sizeof...(Ps)> listed() {
  constexpr std::array<int, sizeof...(Ps)> place{(means<LowPrecisionLayerNorm, Ps> ? 1 : 0) -
                                                 (means<SelectiveBackprop, Ps> ? 1 : 0)...};
  Order<sizeof...(Ps)> out;
  for (int group = -1; group <= 1; ++group) {
    for (std::size_t i = 0; i < sizeof...(Ps); ++i) {
      if (place[i] == group) {
        out.index[out.size++] = i;
      }
    }
  }
  return out;
}

template <class... Ps>
inline constexpr Order<sizeof...(Ps)> listed_order = listed<Ps...>();

template <class E, class... Ps>
consteval const auto& base_order() {
  if constexpr ((std::is_same_v<Ps, reference_order> || ...)) {
    return listed_order<Ps...>;
  } else if constexpr (is_pinned<E, Ps...>()) {
    return PackAt<E, Ps...>::order;
  } else {
    return Pack<Ps...>::order;
  }
}

// Algorithms run in reverse where an event undoes what an earlier one did.
template <class E, class... Ps>
consteval bool reversed() {
  if constexpr ((std::is_same_v<Ps, reference_order> || ...)) {
    return E::name.starts_with("after_");
  } else {
    return contains<E, types<AfterForward, AfterLoss, AfterBackward>>;
  }
}

template <class E, class... Ps>
consteval Order<sizeof...(Ps)> positions() {
  constexpr std::size_t size = sizeof...(Ps);
  constexpr std::array<bool, size> acts{Handles<Ps, E>...};
  constexpr std::array groups = std::is_same_v<E, Init>
                                    ? std::array{Role::logger, Role::callback, Role::algorithm}
                                    : std::array{Role::algorithm, Role::callback, Role::logger};
  const Order<size>& base = base_order<E, Ps...>();
  Order<size> out;
  for (const Role group : groups) {
    const bool backwards = reversed<E, Ps...>() && group == Role::algorithm;
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t p = base.index[backwards ? size - 1 - k : k];
      if (acts[p] && roles<Ps...>[p] == group) {
        out.index[out.size++] = p;
      }
    }
  }
  return out;
}

// Acted: the recipe has no mistake, and somebody acts on E.
template <bool Acted, class E, class... Ps>
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

}  // namespace detail

/// The compile-time side of `Trainer<Policies...>`.
///
/// Naming any member checks the whole recipe and stops with one sentence per mistake, the first
/// three of them; so `static_assert(tutti::Recipe<MixUp, CutMix>::valid)` in a test is a recipe
/// check. An entry may be `With<MixUp{.alpha = 0.3}>`, which stands for MixUp with these values.
template <class... Policies>
struct Recipe : detail::Checked<0, Policies...>,
                detail::Checked<1, Policies...>,
                detail::Checked<2, Policies...> {
  /// True; a recipe that is not valid does not compile.
  static constexpr bool valid = detail::Warned<0, Policies...>::warned() &&
                                detail::Warned<1, Policies...>::warned() &&
                                detail::Warned<2, Policies...>::warned();

  /// How many policies the recipe has.
  static constexpr std::size_t size = sizeof...(Policies);

  /// Some policy has the type or the tag `T`.
  template <class T>
  static constexpr bool has = (detail::means<T, Policies> || ...);

  /// `types<...>` of the policies that act on `E`, in the order in which they run: algorithms, then
  /// callbacks, then loggers (at Init the other way round). Algorithms run as listed, after a
  /// stable sort by their order rules, and reversed at AfterForward, AfterLoss and AfterBackward,
  /// so that what was done last is undone first.
  template <Event E>
  using order = typename detail::OrderOf<detail::mistakes<Policies...>.size == 0 &&
                                             (Handles<Policies, E> || ...),
                                         E, Policies...>::type;

  /// Some policy acts on `E`.
  template <Event E>
  static constexpr bool handles = order<E>::size > 0;

  /// The plan in words: per event who runs in which order, per policy what it does, and the rules
  /// that hold among the policies with their reasons. Ends with a newline, and with a zero behind
  /// it.
  static constexpr std::string_view describe() {
    if constexpr (detail::mistakes<Policies...>.size > 0) {
      return {};
    } else {
      return detail::plan_text<Recipe, Policies...>;
    }
  }
};

/// The same for entries that stand for a policy: With, and policies that are const.
template <class... Entries>
  requires(!detail::BareEntry<Entries>::plain || ...)
struct Recipe<Entries...> : detail::EntryCheck<Entries>..., Recipe<detail::Bare<Entries>...> {};

}  // namespace tutti
