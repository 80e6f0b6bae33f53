// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include <tutti/core/event.hpp>

/// The rules by which policies speak of each other, and their reasons.
///
/// A policy's rules are lists of other policies' types or of tags (core/policy.hpp); an entry may
/// give its reason:
///
///     using runs_before = types<CutMix>;
///     using conflicts_with =
///         types<because<averages_weights, "two averages of the weights disturb each other">>;
///
///     runs_before, runs_after    at every event where both act; a recipe is sorted by them
///     runs_first, runs_last      lists of events: before or after everybody else there
///     conflicts_with             the recipe is refused
///     requires_policy            the recipe is refused without one
///     warns_with                 compiles with a warning, unless accept<A, B> is in the recipe
///     checked_with               fine with the right numbers; the trainer looks at them first
///     works_with                 needs care which tutti takes; said for the reader
namespace tutti {

namespace detail {

// A string literal as a template argument.
template <std::size_t N>
struct Text {
  std::array<char, N> text{};
  constexpr Text() = default;
  consteval Text(const char (&literal)[N]) {  // NOLINT(*-avoid-c-arrays): only literals match
    for (std::size_t i = 0; i < N; ++i) {
      text[i] = literal[i];
    }
  }
  constexpr operator std::string_view() const { return {text.data(), N - 1}; }
};

}  // namespace detail

/// An entry `T`, a policy or a tag, of a list of rules, with its reason: a clause that follows
/// "because".
template <class T, detail::Text Reason>
struct because {};

/// Put into a recipe to say that `A` beside `B` is meant: silences the warning of warns_with.
template <class A, class B>
struct accept final {
  static constexpr std::string_view name = "accept";
};

/// Put into a recipe to run algorithms exactly as MosaicML Composer 0.32 orders them: in the order
/// listed, except SelectiveBackprop first and LowPrecisionLayerNorm last, all reversed at events
/// whose name begins with "after_"; no rule of runs_before or runs_after applied. For comparison
/// runs; it does nothing itself.
struct reference_order final {
  static constexpr std::string_view name = "reference_order";
};

namespace detail {

// Entries of a recipe that speak of it and do nothing themselves.
template <class P>
inline constexpr bool is_directive = std::is_same_v<P, reference_order>;
template <class A, class B>
inline constexpr bool is_directive<accept<A, B>> = true;

// The type or tag that an entry of a list of rules is about, and its reason.
template <class Entry>
struct RuleEntry {
  using type = Entry;
  static constexpr Text<1> reason{};
};
template <class T, auto Reason>
struct RuleEntry<because<T, Reason>> {
  using type = T;
  static constexpr auto reason = Reason;
};

template <class P>
consteval auto tags_of() {
  if constexpr (requires { typename P::tags; }) {
    return typename P::tags{};
  } else {
    return types<>{};
  }
}

// `Name` in a rule means `P` when it is P's type or one of P's tags.
template <class Name, class P>
inline constexpr bool means = std::is_same_v<Name, P> || contains<Name, decltype(tags_of<P>())>;
template <class Name, auto Reason, class P>
inline constexpr bool means<because<Name, Reason>, P> = means<Name, P>;

template <class List, class P>
inline constexpr bool any_means = false;
template <class... Names, class P>
inline constexpr bool any_means<types<Names...>, P> = (means<Names, P> || ...);

}  // namespace detail

}  // namespace tutti
