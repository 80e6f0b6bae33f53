// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include <tutti/core/event.hpp>

/// The rules by which policies speak of each other with their reasons, and what a policy says of
/// itself: two values, so that a misspelt field is the compiler's error where it stands.
///
///     struct MixUp final {
///       static constexpr Rules rules{
///           .tags = {id<mixes_inputs>, id<interpolates_loss>},
///           .runs_before = {{id<CutMix>, "CutMix pastes pixels that are mixed already"}},
///           .graph = {.ahead = {id<BeforeLoss>}},
///       };
///       static constexpr About about{.reads_gradients = false};
///
/// `id<T>` stands for a policy or a tag, which need not be defined there, or for an event. Fields
/// stand in the order below, and those that have nothing to say are left out. `events` of a policy
/// stays a list of types, since it is compared with the overloads of apply() while the program is
/// compiled, and is what `ids<events>` makes values of.
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
  consteval explicit Text(std::string_view other) {  // of N - 1 characters
    for (std::size_t i = 0; i + 1 < N; ++i) {
      text[i] = other[i];
    }
  }
  constexpr operator std::string_view() const { return {text.data(), N - 1}; }
};

// Its address is the type as a plain value, so that rules are compared in loops: a template for
// every pair of policies takes much longer to compile. A member, since Clang prints whose it is.
template <class T>
struct Mark {
  static constexpr char at = 0;
};

// Whether two marks are of one type. GCC leaves two addresses that differ no constant under
// -fsanitize=undefined, and -fno-delete-null-pointer-checks; equal ones it always knows.
#define TUTTI_SAME_TYPE(a, b) (__builtin_constant_p((a) == (b)) && (a) == (b))

template <class T>
constexpr const char* signature() {
  return __PRETTY_FUNCTION__;
}

// "MixUp" in "... [with T = tutti::MixUp]": without namespaces and arguments.
constexpr std::string_view name_in(std::string_view text) {
  text = text.substr(text.find("T = ") + 4);
  text = text.substr(0, text.rfind(']'));
  const std::string_view plain = text.substr(0, text.find('<'));
  const auto colon = plain.rfind("::");
  return colon == std::string_view::npos ? plain : plain.substr(colon + 2);
}

template <class T>
constexpr std::string_view type_name() {
  return name_in(signature<T>());
}

template <class E, class... Es>
consteval std::size_t position(types<Es...>) {
  std::size_t at = 0;
  static_cast<void>(((!std::is_same_v<E, Es> && ++at != 0) && ...));
  return at;
}

template <class... Es>
inline constexpr std::array<std::string_view, sizeof...(Es)> event_names{Es::name...};
template <class... Es>
constexpr std::string_view event_name(std::size_t event, types<Es...>) {
  return event_names<Es...>[event];
}

}  // namespace detail

/// A policy or a tag as a value; made by `id<T>`.
struct Id {
  const char* mark;       ///< the same address for the same type
  const char* signature;  ///< a text that has the type's name

  /// The type's name without namespaces and arguments.
  [[nodiscard]] constexpr std::string_view name() const { return detail::name_in(signature); }
  friend constexpr bool operator==(Id a, Id b) {
    return std::is_constant_evaluated() ? TUTTI_SAME_TYPE(a.mark, b.mark) : a.mark == b.mark;
  }
};

/// An event as a value, its position in all_events; made by `id<E>`.
enum class EventId : std::uint8_t {};

/// The event's name: "batch_end".
constexpr std::string_view to_string(EventId event) {
  return detail::event_name(static_cast<std::size_t>(event), all_events{});
}

/// `T` as a value: an Id of a policy or a tag, which may be declared only; an EventId of an event.
template <class T>
inline constexpr Id id{&detail::Mark<T>::at, detail::signature<T>()};
template <Event E>
inline constexpr auto id<E> = static_cast<EventId>(detail::position<E>(all_events{}));

/// The events of a list of types, for a field that takes them all: `.runs_last = ids<events>`.
template <class List>
inline constexpr std::initializer_list<EventId> ids{};
template <class... Es>
inline constexpr std::initializer_list<EventId> ids<types<Es...>>{id<Es>...};

/// What a rule is about, and its reason: a clause that follows "because", or nothing.
struct Rule {
  Id id;
  const char* reason = "";
};

/// Where hooks between the forward and the end of the backward pass run beside a CUDA graph, see
/// core/graphs.hpp.
struct GraphRules {
  std::initializer_list<EventId> in{};       ///< launches work and nothing else: is recorded
  std::initializer_list<EventId> ahead{};    ///< changes state.batch alone: is called ahead of it
  std::initializer_list<EventId> behind{};   ///< nothing depends on what it does: is called behind
  std::initializer_list<EventId> instead{};  ///< where match() says yes, there is no graph
};

/// What a policy says of others and of its place among them: its member `rules`.
struct Rules {
  std::initializer_list<Id> tags{};  ///< what it does, for others' rules: core/tags.hpp, or others
  std::initializer_list<Rule> runs_before{};      ///< at every event where both act
  std::initializer_list<Rule> runs_after{};       ///< likewise
  std::initializer_list<EventId> runs_first{};    ///< before everybody else there
  std::initializer_list<EventId> runs_last{};     ///< after everybody else there
  std::initializer_list<Rule> conflicts_with{};   ///< the recipe is refused
  std::initializer_list<Rule> requires_policy{};  ///< the recipe is refused without one
  /// Compiles with a warning, unless accept<A, B> is in the recipe.
  std::initializer_list<Rule> warns_with{};
  /// Fine with the right numbers; the trainer looks at them first.
  std::initializer_list<Rule> checked_with{};
  std::initializer_list<Rule> works_with{};  ///< needs care which tutti takes; for the reader
  GraphRules graph{};
};

/// What a policy says of itself, so that others may do more: its member `about`.
struct About {
  bool reads_batch = true;  ///< false: its hooks leave state.batch alone, see fused/normalize.hpp
  bool reads_gradients = true;  ///< false: never looks at gradients after the step
  /// Sets state.skip_step at AfterTrainBatch, or state.go_back at BatchEnd.
  bool skips_steps = false;
  /// AfterTrainBatch: may leave its work there to the optimizer's pass over memory, by writing into
  /// *state.fused_step where that is not null. BatchEnd: likewise, by `void join(optim::FusedStep&,
  /// const State&)` just before the optimizer's step.
  std::initializer_list<EventId> fuses_into_step{};
  std::initializer_list<EventId> only_watches{};  ///< an algorithm, but changes nothing there
  /// Why no recipe with it can have CUDA graphs: a clause, for layers that draw or count on the
  /// host while they run.
  std::string_view no_graph{};
  std::string_view no_sharding{};            ///< why it cannot train a sharded model
  std::string_view no_parameter_sharding{};  ///< why not one whose parameters are
  std::string_view no_tensor_parallel{};     ///< why not one that tensor_parallel() has spread
  /// Where, in what save() puts, tensors with names of parameters are this rank's parts of them
  /// from take_shards(State&) on, which a run calls once the model has its parameters in parts.
  std::string_view parts{};
  /// The model computes something else without it, also with the weights of a checkpoint: a load
  /// into a recipe that lacks it says so in its report.
  bool required_on_load = false;
};

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

// `event` is on the list.
constexpr bool holds(std::initializer_list<EventId> list, EventId event) {
  for (const EventId one : list) {
    if (one == event) {
      return true;
    }
  }
  return false;
}

}  // namespace detail

}  // namespace tutti
