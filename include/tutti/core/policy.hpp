// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <tutti/core/policy_traits.hpp>
#include <tutti/core/rule.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/fwd.hpp>

/// What a policy is, and the checks that no hook of it is dropped in silence.
///
/// A policy is a final struct with one overload of `void apply(Event, tutti::State&)` per event
/// that it acts on. Optional members:
///
///     static constexpr std::string_view name          shown and stored; default: the type's name
///     static constexpr Role role                      algorithm, callback or logger
///     using events = types<...>                       compared with the overloads, both ways
///     static constexpr Rules rules{...}               tags, rules about others: core/rule.hpp
///     static constexpr About about{...}               what it leaves alone, so that others may act
///     bool match(Event, const State&) const           run-time condition beside an apply
///     constexpr void validate() const                 throws when a hyperparameter is out of range
///     void join(optim::FusedStep&, const State&)          leaves its work at BatchEnd to the
///         optimizer's pass over memory, just before the step; where `about.fuses_into_step` has
///         BatchEnd
///     template <class Model> static constexpr bool supports    whether that model will do
///     template <class Model> void validate_model() const       the same, looking at its values
///     void validate_with(const Other&) const          throws when it cannot work beside that
///     void save(Archive&) const, void load(const Archive&)    what a checkpoint keeps of it
///     void enter_checkpoint(State&), void leave_checkpoint(State&)    around every checkpoint that
///         is written: gives the model what it is to hold there, and takes it back
///     std::vector<std::string> kept_elsewhere(const State&) const    names of weights that never
///         change, which checkpoints leave to the program; they hold their hash
///     void take_shards(State&)                        parameters have been sharded: cuts what it
///         keeps of them, which save() puts under the path `about.parts`
///     bool leaves_parameters_unused() const           some may get no gradient (for several ranks)
///     Rng rng                                         seeded and checkpointed by the engine
///     struct Run { ... } run{}                        what it holds while it runs, and no option
///     bool reads_batch(const State&) const            whether its hooks look at state.batch now
///     pixels(const fused::Frame&)                     what it does to a pixel: fused/pixels.hpp
///     void close(State&)                              end of the run, also after an exception
namespace tutti {

namespace detail {

// Converts to whatever a hook asks for; only ever named in unevaluated calls.
struct Anything {
  template <class T>
  operator T&() const;
  template <class T>
  operator T&&() const;
};

template <class P, class E, class... Rest>
concept AppliesTo = requires(P& policy, Rest... rest) { policy.apply(E{}, rest...); };
template <class P, class E, class... Rest>
concept MatchesOn = requires(P& policy, Rest... rest) { policy.match(E{}, rest...); };

template <class P, class E>
concept Calls = requires(P& policy, State& state) { policy.apply(E{}, state); };

// The hook takes the state by value: it would get a copy.
template <class P, class E>
concept TakesState =
    requires(P& policy, State& state) { policy.apply(E{}, static_cast<State&&>(state)); };

// Some overload of apply names the event and none can be called as it should.
template <class P, class E>
concept Dead = !Calls<P, E> && (AppliesTo<P, E> || AppliesTo<P, E, Anything> ||
                                AppliesTo<P, E, Anything, Anything> || TakesState<P, E>);

// Some overload of match names the event.
template <class P, class E>
concept NamesMatch =
    MatchesOn<P, E> || MatchesOn<P, E, Anything> || MatchesOn<P, E, Anything, Anything>;

}  // namespace detail

/// `P` runs at `E`: `policy.apply(E{}, state)` is a void expression.
template <class P, class E>
concept Handles = detail::Calls<P, E> && requires(P& policy, State& state) {
  { policy.apply(E{}, state) } -> std::same_as<void>;
};

/// `P` runs at `E` only if it says so: `policy.match(E{}, const_state)` is a bool.
template <class P, class E>
concept Matches = requires(const P& policy, const State& state) {
  { policy.match(E{}, state) } -> std::same_as<bool>;
};

/// `P` runs at `E` and cannot change training: its hook takes `const State&`.
template <class P, class E>
concept Observes = Handles<P, E> && requires(P& policy, const State& state) {
  { policy.apply(E{}, state) } -> std::same_as<void>;
};

namespace detail {

template <class P, class Es>
inline constexpr bool handles_any = false;
template <class P, class... Es>
inline constexpr bool handles_any<P, types<Es...>> = (Handles<P, Es> || ...);

template <class P, class Es>
inline constexpr bool only_observes = false;
template <class P, class... Es>
inline constexpr bool only_observes<P, types<Es...>> =
    ((!Handles<P, Es> || Observes<P, Es>) && ...);

// As Logger calls them.
template <class P>
concept ReceivesMetrics = requires(P& policy, std::int64_t step) {
  policy.log_metrics(std::span<const LoggedMetric>(), step);
};
template <class P>
concept ReceivesHyperparameters =
    requires(P& policy) { policy.log_hyperparameters(std::span<const Hyperparameter>()); };
template <class P>
concept ReceivesImages = requires(P& policy, const LoggedImages& images, std::int64_t step) {
  policy.log_images(images, step);
};
template <class P>
concept ReceivesTable = requires(P& policy, const LoggedTable& table, std::int64_t step) {
  policy.log_table(table, step);
};
template <class P>
concept ReceivesFiles =
    requires(P& policy, std::string_view text) { policy.upload_file(text, text); };
template <class P>
concept GivesFilesBack = ReceivesFiles<P> && requires(P& policy, std::string_view text) {
  { policy.download_file(text, text) } -> std::same_as<bool>;
};
template <class P>
concept ReceivesResult =
    requires(P& policy, const LoggedResult& result) { policy.log_result(result); };

}  // namespace detail

/// `P` receives what is logged: it has one of log_metrics, log_hyperparameters, log_images,
/// log_table, upload_file, log_result.
template <class P>
concept LoggerDestination =
    detail::ReceivesMetrics<P> || detail::ReceivesHyperparameters<P> || detail::ReceivesImages<P> ||
    detail::ReceivesTable<P> || detail::ReceivesFiles<P> || detail::ReceivesResult<P>;

/// What a policy is for; decides who runs first at an event.
enum class Role { algorithm, callback, logger };

constexpr std::string_view to_string(Role role) {
  return role == Role::algorithm ? "algorithm" : role == Role::callback ? "callback" : "logger";
}

/// `P` is told by the engine what runs: `p.record_event(name)`, `p.record_policy(event, name,
/// role)`.
template <class P>
concept Recorder = requires(P& policy, std::string_view text) {
  policy.record_event(text);
  policy.record_policy(text, text, Role::algorithm);
};

/// `P` can stand in a recipe: it acts on an event, receives what is logged, or records what runs.
template <class P>
concept Policy = std::is_class_v<P> && std::is_move_constructible_v<P> &&
                 (detail::handles_any<P, all_events> || LoggerDestination<P> || Recorder<P>);

namespace detail {
template <class P>
consteval Role deduce_role() {
  if constexpr (policy_traits<P>::has_role) {
    return P::role;
  } else if constexpr (LoggerDestination<P>) {
    return Role::logger;
  } else if constexpr (only_observes<P, all_events>) {
    return Role::callback;
  } else {
    return Role::algorithm;
  }
}
}  // namespace detail

/// The role of `P`: its member `role`; else logger if it is a LoggerDestination; else callback if
/// all its hooks take `const State&`; else algorithm.
template <Policy P>
inline constexpr Role role_of = detail::deduce_role<P>();

/// `P` changes training.
template <class P>
concept Algorithm = Policy<P> && role_of<P> == Role::algorithm;

/// `P` watches training.
template <class P>
concept Callback = Policy<P> && role_of<P> == Role::callback;

/// The name of `P`: its member `name`, else its type's name without namespaces and arguments.
template <class P>
constexpr std::string_view name_of() {
  return policy_traits<P>::name;
}

}  // namespace tutti
