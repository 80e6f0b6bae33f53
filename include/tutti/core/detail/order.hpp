// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include <tutti/core/policy.hpp>

/// Order and conflicts of a pack of policies as plain constexpr arrays of indices: one pass over
/// the pack per question, no recursive templates.
namespace tutti::detail {

template <class A, class B>
consteval bool warns() {  // A lists B in warns_with; a Switch warns of nothing, since it may be off
  return !is_switch<A> && !std::is_same_v<A, B> &&
         has_rule(policy_traits<A>::rules.warns_with, facts<B>);
}

// An accept<> of the pack that is about A and B.
template <class Directive, class A, class B>
inline constexpr bool accepts = false;
template <class X, class Y, class A, class B>
inline constexpr bool accepts<accept<X, Y>, A, B> =
    (means<X, A> && means<Y, B>) || (means<X, B> && means<Y, A>);

template <class A, class B>
consteval bool refuses() {  // A lists B in conflicts_with
  return has_rule(policy_traits<A>::rules.conflicts_with, facts<B>);
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
constexpr void add_edges(Edges<N>& edges, const Facts* const* all, std::size_t i,
                         std::initializer_list<Rule> rules, bool before) {
  for (const Rule& rule : rules) {
    for (std::size_t j = 0; j < N; ++j) {
      bool meant = TUTTI_SAME_TYPE(all[j]->self, rule.id.mark);
      for (std::size_t k = 0; k < all[j]->size && !meant; ++k) {
        meant = TUTTI_SAME_TYPE(all[j]->tags[k].mark, rule.id.mark);
      }
      if (meant && !TUTTI_SAME_TYPE(all[i]->self, all[j]->self)) {
        edges[before ? i : j][before ? j : i] = true;
      }
    }
  }
}

template <std::size_t N>
constexpr Edges<N> edges_of(const std::array<const Facts*, N>& all) {
  Edges<N> out{};
  for (std::size_t i = 0; i < N; ++i) {
    add_edges<N>(out, all.data(), i, all[i]->rules->runs_before, true);
    add_edges<N>(out, all.data(), i, all[i]->rules->runs_after, false);
  }
  return out;
}

template <class... Ps>
struct Pack {
  static constexpr std::size_t size = sizeof...(Ps);

  static constexpr std::array<const Facts*, size> all{&facts<Ps>...};
  static constexpr Edges<size> edges = edges_of<size>(all);
  static constexpr Order<size> order = sort<size>(edges);
  static constexpr bool cyclic = order.size < size;
};

template <>
struct Pack<> {
  static constexpr std::size_t size = 0;
  static constexpr std::array<const Facts*, 0> all{};
  static constexpr Edges<0> edges{};
  static constexpr Order<0> order{};
  static constexpr bool cyclic = false;
};

// P asks for the front (-1) or the back (1) of E.
template <class P, class E>
consteval int pin() {
  return holds(policy_traits<P>::rules.runs_first, id<E>)  ? -1
         : holds(policy_traits<P>::rules.runs_last, id<E>) ? 1
                                                           : 0;
}

template <class P>
inline constexpr bool is_pinned_anywhere =
    policy_traits<P>::rules.runs_first.size() + policy_traits<P>::rules.runs_last.size() > 0;
template <class... Ps>
inline constexpr bool any_pinned = (is_pinned_anywhere<Ps> || ...);

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

}  // namespace tutti::detail
