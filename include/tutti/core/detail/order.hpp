// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <tutti/core/policy.hpp>

/// Order and conflicts of a pack of policies as plain constexpr arrays of indices: one pass over
/// the pack per question, no recursive templates.
namespace tutti::detail {

// Types as plain values, so that rules are compared in loops: a template for every pair of policies
// takes much longer to compile.
using Identity = const char*;
template <class T>
inline constexpr char identity = 0;

template <class List>
inline constexpr std::array<Identity, 0> identities{};
template <class... Entries>
inline constexpr std::array<Identity, sizeof...(Entries)> identities<types<Entries...>>{
    &identity<typename RuleEntry<Entries>::type>...};

// Whether two identities are of one type. GCC leaves two addresses that differ no constant under
// -fsanitize=undefined, and -fno-delete-null-pointer-checks; equal ones it always knows.
#define TUTTI_SAME_TYPE(a, b) (__builtin_constant_p((a) == (b)) && (a) == (b))

// A list of them. Compilers are slow at calling functions while they compile, so the loops over
// these are plain ones.
struct Identities {
  const Identity* first = nullptr;
  std::size_t size = 0;
};
template <class List>
consteval Identities identities_of() {
  return {identities<List>.data(), identities<List>.size()};
}

// What P is, and whom it speaks of in its order rules.
struct OrderRules {
  Identity self = nullptr;
  Identities tags{};
  Identities runs_before{};
  Identities runs_after{};
};

template <class P>
consteval OrderRules order_rules() {
  OrderRules out{.self = &identity<P>, .tags = identities_of<decltype(tags_of<P>())>()};
  if constexpr (requires { typename P::runs_before; }) {
    out.runs_before = identities_of<typename P::runs_before>();
  }
  if constexpr (requires { typename P::runs_after; }) {
    out.runs_after = identities_of<typename P::runs_after>();
  }
  return out;
}

template <class A, class B>
consteval bool warns() {  // A lists B in warns_with
  if constexpr (requires { typename A::warns_with; }) {
    return !std::is_same_v<A, B> && any_means<typename A::warns_with, B>;
  } else {
    return false;
  }
}

// An accept<> of the pack that is about A and B.
template <class Directive, class A, class B>
inline constexpr bool accepts = false;
template <class X, class Y, class A, class B>
inline constexpr bool accepts<accept<X, Y>, A, B> =
    (means<X, A> && means<Y, B>) || (means<X, B> && means<Y, A>);

template <class A, class B>
consteval bool refuses() {  // A lists B in conflicts_with
  if constexpr (requires { typename A::conflicts_with; }) {
    return any_means<typename A::conflicts_with, B>;
  } else {
    return false;
  }
}
template <class A, class B>
inline constexpr bool can_be_combined =
    std::is_same_v<A, B> || (!refuses<A, B>() && !refuses<B, A>());

template <std::size_t N>
struct Order {
  std::array<std::size_t, N> index{};  // positions in the pack, in running order
  std::size_t size = 0;                // how many of them are sorted; less than N: a cycle remains
};

template <std::size_t N>
using Edges = std::array<std::array<bool, N>, N>;

// Stable topological sort: always takes the first policy of the pack that nobody must precede.
template <std::size_t N>
constexpr Order<N> sort(const Edges<N>& edges) {
  Order<N> out;
  std::array<bool, N> done{};
  while (out.size < N) {
    std::size_t next = N;
    for (std::size_t i = 0; i < N && next == N; ++i) {
      bool free = !done[i];
      for (std::size_t j = 0; free && j < N; ++j) {
        free = done[j] || !edges[j][i];
      }
      next = free ? i : N;
    }
    if (next == N) {
      return out;
    }
    done[next] = true;
    out.index[out.size++] = next;
  }
  return out;
}

// One cycle among the policies that `sort` could not place, as positions in the pack.
template <std::size_t N>
constexpr Order<N> cycle(const Edges<N>& edges) {
  std::array<bool, N> sorted{};
  const Order<N> placed = sort(edges);
  for (std::size_t k = 0; k < placed.size; ++k) {
    sorted[placed.index[k]] = true;
  }
  std::size_t at = 0;
  while (sorted[at]) {
    ++at;
  }
  // Walking against the edges from a policy that waits must come round, since all of them wait.
  Order<N> path;
  std::array<bool, N> seen{};
  while (!seen[at]) {
    seen[at] = true;
    path.index[path.size++] = at;
    std::size_t from = 0;
    while (sorted[from] || !edges[from][at]) {
      ++from;
    }
    at = from;
  }
  Order<N> out;  // from the place where the walk came round, turned into running order
  std::size_t start = 0;
  while (path.index[start] != at) {
    ++start;
  }
  for (std::size_t k = path.size; k > start; --k) {
    out.index[out.size++] = path.index[k - 1];
  }
  std::rotate(out.index.begin(), std::min_element(out.index.begin(), out.index.begin() + out.size),
              out.index.begin() + out.size);
  return out;
}

// Marks in `edges` what policy `i` says of those before or after it.
template <std::size_t N>
constexpr void add_edges(Edges<N>& edges, const OrderRules* rules, std::size_t i, Identities names,
                         bool before) {
  for (std::size_t n = 0; n < names.size; ++n) {
    const Identity name = names.first[n];
    for (std::size_t j = 0; j < N; ++j) {
      bool meant = TUTTI_SAME_TYPE(rules[j].self, name);
      for (std::size_t t = 0; t < rules[j].tags.size; ++t) {
        meant = meant || TUTTI_SAME_TYPE(rules[j].tags.first[t], name);
      }
      if (meant && !TUTTI_SAME_TYPE(rules[i].self, rules[j].self)) {
        edges[before ? i : j][before ? j : i] = true;
      }
    }
  }
}

template <std::size_t N>
constexpr Edges<N> edges_of(const std::array<OrderRules, N>& rules) {
  Edges<N> out{};
  for (std::size_t i = 0; i < N; ++i) {
    add_edges<N>(out, rules.data(), i, rules[i].runs_before, true);
    add_edges<N>(out, rules.data(), i, rules[i].runs_after, false);
  }
  return out;
}

template <class... Ps>
struct Pack {
  static constexpr std::size_t size = sizeof...(Ps);

  static constexpr std::array<OrderRules, size> rules{order_rules<Ps>()...};
  static constexpr Edges<size> edges = edges_of<size>(rules);
  static constexpr Order<size> order = sort<size>(edges);
  static constexpr bool cyclic = order.size < size;
};

template <>
struct Pack<> {
  static constexpr std::size_t size = 0;
  static constexpr std::array<OrderRules, 0> rules{};
  static constexpr Edges<0> edges{};
  static constexpr Order<0> order{};
  static constexpr bool cyclic = false;
};

// P asks for the front (-1) or the back (1) of E.
template <class P, class E>
consteval int pin() {
  if constexpr (requires { typename P::runs_first; }) {
    if (contains<E, typename P::runs_first>) {
      return -1;
    }
  }
  if constexpr (requires { typename P::runs_last; }) {
    if (contains<E, typename P::runs_last>) {
      return 1;
    }
  }
  return 0;
}

template <class P>
concept Pinned = requires { typename P::runs_first; } || requires { typename P::runs_last; };
template <class... Ps>
inline constexpr bool any_pinned = (Pinned<Ps> || ...);

template <class E, class... Ps>
consteval bool is_pinned() {
  if constexpr (any_pinned<Ps...>) {  // asked once, since the other question is one per event
    return ((pin<Ps, E>() != 0) || ...);
  } else {
    return false;
  }
}

// The edges with those of their paths.
template <std::size_t N>
constexpr Edges<N> closure(Edges<N> edges) {
  for (std::size_t k = 0; k < N; ++k) {
    for (std::size_t i = 0; i < N; ++i) {
      for (std::size_t j = 0; j < N; ++j) {
        edges[i][j] = edges[i][j] || (edges[i][k] && edges[k][j]);
      }
    }
  }
  return edges;
}

// Adds the pins of an event to the rules, among who acts there. Who must run before the first or
// after the last belongs to them.
template <std::size_t N>
constexpr Edges<N> with_pins(const Edges<N>& rules, const std::array<int, N>& pins,
                             const std::array<bool, N>& acts) {
  const Edges<N> paths = closure(rules);
  std::array<int, N> place = pins;
  for (std::size_t i = 0; i < N; ++i) {
    for (std::size_t j = 0; j < N && place[i] == 0; ++j) {
      place[i] = pins[j] < 0 && paths[i][j] ? -1 : pins[j] > 0 && paths[j][i] ? 1 : 0;
    }
  }
  Edges<N> out = rules;
  for (std::size_t i = 0; i < N; ++i) {
    for (std::size_t j = 0; j < N; ++j) {
      out[i][j] = out[i][j] || (acts[i] && acts[j] && place[i] < place[j]);
    }
  }
  return out;
}

// The order rules as they hold at E.
template <class E, class... Ps>
struct PackAt {
  static constexpr std::size_t size = sizeof...(Ps);
  static constexpr Edges<size> edges =
      with_pins<size>(Pack<Ps...>::edges, {pin<Ps, E>()...}, {Handles<Ps, E>...});
  static constexpr Order<size> order = sort<size>(edges);
};

#undef TUTTI_SAME_TYPE

}  // namespace tutti::detail
