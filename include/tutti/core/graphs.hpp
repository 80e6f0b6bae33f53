// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/recipe.hpp>

/// Which recipes can be trained with CUDA graphs, decided at compile time.
///
/// A graph has the work of a microbatch from the forward pass to the end of the backward pass,
/// recorded once and replayed for every batch of the same shapes. Hooks outside of that run as
/// ever. Of those inside a policy says:
///
///     static constexpr Rules rules{.graph = {.in = {id<AfterLoss>}}};
///
///     .in         launches work on the device and nothing else: is recorded, and not called when
///                 the graph is replayed
///     .ahead      changes state.batch alone, but not what the model's forward() reads, and looks
///                 at most at shapes of state.outputs: is called ahead
///     .behind     nothing that comes after it in the microbatch depends on what it does: is called
///                 behind
///     .instead    where match(Event, state), asked behind BeforeForward, says yes, this microbatch
///                 is trained without a graph
///
///     static constexpr About about{.no_graph = "..."};    no recipe with it can; a clause that
///         says why, for layers that draw or count on the host while they run
///
/// Hooks that take `const State&`, and those of AfterBackward, are called behind without saying so.
namespace tutti {

namespace detail {

using graph_events = types<AfterForward, BeforeLoss, AfterLoss, BeforeBackward, AfterBackward>;

/// Where a hook runs beside a graph.
enum class GraphPlace : std::uint8_t { inside, ahead, behind, instead, nowhere };

template <class P, class E>
consteval GraphPlace graph_place() {
  constexpr const GraphRules& graph = policy_traits<P>::rules.graph;
  using Own = Unswitched<P>;
  if constexpr (holds(graph.in, id<E>)) {
    return GraphPlace::inside;
  } else if constexpr (holds(graph.ahead, id<E>)) {
    return GraphPlace::ahead;
  } else if constexpr (holds(graph.instead, id<E>) && Matches<Own, E>) {
    return GraphPlace::instead;
  } else if constexpr (holds(graph.behind, id<E>) || Observes<Own, E> ||
                       std::is_same_v<E, AfterBackward>) {
    return GraphPlace::behind;
  } else {
    return GraphPlace::nowhere;
  }
}

template <class... Ps, class... Qs>
types<Ps..., Qs...> operator+(types<Ps...>, types<Qs...>);

template <bool Yes, class P>
using PlacedAt = std::conditional_t<Yes, types<P>, types<>>;

// Those of the policies whose hook at E has that place.
template <GraphPlace Place, class E, class... Ps>
consteval auto placed(types<Ps...>) {
  return decltype((types<>{} + ... + PlacedAt<(graph_place<Ps, E>() == Place), Ps>{})){};
}

/// Why a recipe cannot have graphs: a policy, and its clause or an event. No name: it can.
struct GraphRefusal {
  std::string_view policy{};
  std::string_view event{};   // whose hook has no place; empty: see clause
  std::string_view other{};   // in front of whose hook it would have to run
  std::string_view clause{};  // the policy's own
};

template <class E, class... Ps>
consteval GraphRefusal refusal_at(types<Ps...>) {
  GraphRefusal found;
  GraphPlace last = GraphPlace::ahead;
  std::string_view before;
  [[maybe_unused]] const auto look = [&]<class P>(std::type_identity<P>) {
    const GraphPlace place = graph_place<P, E>();
    if (place == GraphPlace::instead || !found.policy.empty()) {
      return;
    }
    if (place == GraphPlace::nowhere) {
      found = {.policy = name_of<P>(), .event = E::name};
    } else if ((place == GraphPlace::ahead && last != GraphPlace::ahead) ||
               (place == GraphPlace::inside && last == GraphPlace::behind)) {
      found = {.policy = name_of<P>(), .event = E::name, .other = before};
    }
    last = place;
    before = name_of<P>();
  };
  (look(std::type_identity<Ps>{}), ...);
  return found;
}

template <class R, class... Ps, class... Es>
consteval GraphRefusal find_refusal(types<Ps...>, types<Es...>) {
  GraphRefusal found;
  static_cast<void>(((found.clause = policy_traits<Ps>::about.no_graph,
                      found.policy = name_of<Ps>(), !found.clause.empty()) ||
                     ...));
  if (!found.clause.empty()) {
    return found;
  }
  found = {};
  static_cast<void>(
      ((found = refusal_at<Es>(typename R::template order<Es>{}), !found.policy.empty()) || ...));
  return found;
}

}  // namespace detail

/// What a recipe says of CUDA graphs.
template <class R>
struct GraphPlan;
template <class... Policies>
struct GraphPlan<Recipe<Policies...>> {
  using recipe = Recipe<detail::Bare<Policies>...>;

  static constexpr detail::GraphRefusal refusal =
      detail::find_refusal<recipe>(types<detail::Bare<Policies>...>{}, detail::graph_events{});

  /// A microbatch can be recorded, from the forward pass to the end of the backward pass.
  static constexpr bool possible = refusal.policy.empty();

  /// `types<...>` of the policies whose hooks at `E` are recorded, called ahead, called behind, or
  /// asked whether a microbatch is to be trained without a graph; in the order of the recipe.
  template <Event E>
  using inside =
      decltype(detail::placed<detail::GraphPlace::inside, E>(typename recipe::template order<E>{}));
  template <Event E>
  using ahead =
      decltype(detail::placed<detail::GraphPlace::ahead, E>(typename recipe::template order<E>{}));
  template <Event E>
  using behind =
      decltype(detail::placed<detail::GraphPlace::behind, E>(typename recipe::template order<E>{}));
  template <Event E>
  using instead = decltype(detail::placed<detail::GraphPlace::instead, E>(
      typename recipe::template order<E>{}));

  /// Why not, as a sentence without its full stop that names the first policy in the way; empty
  /// when it is possible.
  static std::string why_not() {
    std::string text(refusal.policy);
    if (possible) {
      return text;
    }
    if (refusal.event.empty()) {
      return text.append(" ").append(refusal.clause);
    }
    text.append(" acts on ").append(refusal.event);
    if (!refusal.other.empty()) {
      return text.append(" after ")
          .append(refusal.other)
          .append(
              ", and its hook would have to run before that one's (rules.graph: .ahead, .in and "
              ".behind run in this order)");
    }
    return text.append(
        ", between the forward and the end of the backward pass, and does not say where its hook "
        "runs beside a graph (rules.graph: .in, .ahead, .behind)");
  }
};

}  // namespace tutti
