// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include <tutti/core/detail/members.hpp>
#include <tutti/core/policy.hpp>

/// The checks that no hook of a policy is dropped in silence, each with its sentence. Recipe
/// instantiates those that fail; their names and parameters are what a compiler prints first.
namespace tutti {

namespace detail {

// The variables' names and arguments are what a compiler prints first when a check below fails.
template <class P, class E>
inline constexpr bool calls_without_result = !Calls<P, E> || Handles<P, E>;
template <class P, class E>
inline constexpr bool calls_with_state = !Dead<P, E>;
template <class P, class E>
inline constexpr bool match_returns_bool = Matches<P, E> || !NamesMatch<P, E>;
template <class P, class E>
inline constexpr bool match_has_apply = Handles<P, E> || !Matches<P, E>;

template <class P, class E>
inline constexpr bool listed_event_has_apply = Handles<P, E> || !Lists<P, E>;
template <class P, class E>
inline constexpr bool apply_is_listed = !ListsEvents<P> || Lists<P, E> || !Handles<P, E>;

// A hook by another name: p.aply(Event, State&) and the like, or a method named after its event.
#define TUTTI_HAS(method) \
  requires(P & policy, State & state) { policy.method(Anything{}, state); }
#define TUTTI_NAMED(event)                                          \
  (                                                                 \
      requires(P& policy, State& state) { policy.event(state); } || \
      requires(P& policy, State& state, Logger& logger) { policy.event(state, logger); })
template <class P>
concept MisspellsApply = TUTTI_HAS(aply) || TUTTI_HAS(appply) || TUTTI_HAS(aplly) ||
                         TUTTI_HAS(appy) || TUTTI_HAS(Apply) || TUTTI_HAS(applies) ||
                         TUTTI_HAS(on_apply) || TUTTI_HAS(on_event) || TUTTI_HAS(run_event);
template <class P>
concept MisspellsMatch = TUTTI_HAS(mach) || TUTTI_HAS(macth) || TUTTI_HAS(Match) ||
                         TUTTI_HAS(matches) || TUTTI_HAS(should_match);
template <class P>
concept NamedAfterEvent =
    TUTTI_NAMED(init) || TUTTI_NAMED(before_load) || TUTTI_NAMED(after_load) ||
    TUTTI_NAMED(fit_start) || TUTTI_NAMED(iteration_start) || TUTTI_NAMED(epoch_start) ||
    TUTTI_NAMED(before_dataloader) || TUTTI_NAMED(after_dataloader) || TUTTI_NAMED(batch_start) ||
    TUTTI_NAMED(before_train_batch) || TUTTI_NAMED(before_forward) || TUTTI_NAMED(after_forward) ||
    TUTTI_NAMED(before_loss) || TUTTI_NAMED(after_loss) || TUTTI_NAMED(before_backward) ||
    TUTTI_NAMED(after_backward) || TUTTI_NAMED(after_train_batch) || TUTTI_NAMED(batch_end) ||
    TUTTI_NAMED(batch_checkpoint) || TUTTI_NAMED(epoch_end) || TUTTI_NAMED(epoch_checkpoint) ||
    TUTTI_NAMED(iteration_end) || TUTTI_NAMED(iteration_checkpoint) || TUTTI_NAMED(fit_end) ||
    TUTTI_NAMED(eval_before_all) || TUTTI_NAMED(eval_start) || TUTTI_NAMED(eval_batch_start) ||
    TUTTI_NAMED(eval_before_forward) || TUTTI_NAMED(eval_after_forward) ||
    TUTTI_NAMED(eval_batch_end) || TUTTI_NAMED(eval_end) || TUTTI_NAMED(eval_after_all) ||
    TUTTI_NAMED(eval_standalone_start) || TUTTI_NAMED(eval_standalone_end) ||
    TUTTI_NAMED(predict_start) || TUTTI_NAMED(predict_batch_start) ||
    TUTTI_NAMED(predict_before_forward) || TUTTI_NAMED(predict_after_forward) ||
    TUTTI_NAMED(predict_batch_end) || TUTTI_NAMED(predict_end);
#undef TUTTI_HAS
#undef TUTTI_NAMED

// Stands for a base class of P some of whose hooks P hides; used to initialise P as an aggregate.
template <class Base, class P, class Es>
inline constexpr bool hides = false;
template <class Base, class P, class... Es>
inline constexpr bool hides<Base, P, types<Es...>> =
    ((Handles<Base, Es> && !Handles<P, Es>) || ...);
template <class P>
struct HiddenBase {
  template <class Base>
    requires(std::is_base_of_v<Base, P> && !std::is_same_v<Base, P> && hides<Base, P, all_events>)
  operator Base() const;
};
template <class P>
concept HidesBase = std::is_aggregate_v<P> && requires { P{HiddenBase<P>{}}; };

// P has a member called apply, accessible or not; only of types that can be derived from.
struct HasApply {
  void apply();
};
template <class P>
struct ApplyTwice : P, HasApply {};
template <class P>
inline constexpr bool names_apply = [] {
  if constexpr (std::is_class_v<P> && !std::is_final_v<P>) {
    return !requires { &ApplyTwice<P>::apply; };
  } else {
    return false;
  }
}();

template <class P, class Wrong>
inline constexpr bool is_looked_for = false;
template <class P, class Member>
inline constexpr bool is_usable = false;
template <class P>
inline constexpr bool acts_on_an_event =
    handles_any<P, all_events> || LoggerDestination<P> || Recorder<P>;
template <class P>
inline constexpr bool apply_is_public = acts_on_an_event<P> || !names_apply<P>;
template <class P>
inline constexpr bool apply_is_spelt_right = !MisspellsApply<P>;
template <class P>
inline constexpr bool match_is_spelt_right = !MisspellsMatch<P>;
template <class P>
inline constexpr bool hooks_are_called_apply = !NamedAfterEvent<P>;
template <class P>
inline constexpr bool hides_no_hook = !HidesBase<P>;
template <class P, class E>
inline constexpr bool apply_is_const = !Calls<P, E> || Calls<const P, E>;
template <class P, class M>
inline constexpr bool replaces_nothing = !lists<M, is_compiled> || !means<changes_model, P>;
template <class P, class M>
inline constexpr bool supported = Supports<P, M> || !replaces_nothing<P, M>;
// A policy that lists its events is compared with the list instead, which costs less to compile.
template <class P>
inline constexpr bool names_are_right = apply_is_spelt_right<P> && match_is_spelt_right<P> &&
                                        hooks_are_called_apply<P> && hides_no_hook<P>;
template <class P>
concept RightNames = ListsEvents<P> || names_are_right<P>;

// What the variables above say, asked of every policy at every event and so without them.
template <class P, class E>
concept RightHook = (Handles<P, E> || (!Calls<P, E> && !Matches<P, E>)) && !Dead<P, E> &&
                    (Matches<P, E> || !NamesMatch<P, E>);
template <class P, class E>
concept RightEvent = !ListsEvents<P> || Lists<P, E> == Handles<P, E>;

}  // namespace detail

/// Refuses every hook of `P` for `E` that would never run.
template <class P, class E>
struct HookCheck {
  static_assert(detail::calls_without_result<P, E>,
                "tutti: apply() for this event returns a value, which nobody would read; make it "
                "void apply(Event, tutti::State&), and to stop a run call state.stop_training().");
  static_assert(detail::calls_with_state<P, E>,
                "tutti: apply() names this event but cannot be called as apply(Event, "
                "tutti::State&), so it would never run; fix its parameters or remove it.");
  static_assert(detail::match_returns_bool<P, E>,
                "tutti: match() names this event but is not bool match(Event, const "
                "tutti::State&) const; fix its signature or remove it.");
  static_assert(!detail::match_returns_bool<P, E> || detail::match_has_apply<P, E>,
                "tutti: match() stands beside no apply() for the same event, so it decides "
                "nothing; add the apply() or remove the match().");
};

/// Compares the list `P::events`, where there is one, with the overloads of apply().
template <class P, class E>
struct EventsCheck {
  static_assert(detail::listed_event_has_apply<P, E>,
                "tutti: the policy's `events` list has this event but no apply() takes it; write "
                "void apply(Event, tutti::State&) or take the event off the list.");
  static_assert(detail::apply_is_listed<P, E>,
                "tutti: apply() takes this event but the policy's `events` list lacks it; add the "
                "event to the list.");
};

/// Refuses a type that is no policy.
template <class P>
struct PolicyCheck {
  static_assert(std::is_class_v<P>,
                "tutti: this is not a struct and so no policy; put the policy's own type into the "
                "recipe, without & or *.");
  static_assert(!std::is_class_v<P> || std::is_move_constructible_v<P>,
                "tutti: this policy cannot be moved into the trainer; give it a move constructor "
                "or hold the immovable part by std::unique_ptr.");
};

/// Refuses methods of `P` that look like hooks and are none.
template <class P>
struct NameCheck {
  static_assert(detail::apply_is_spelt_right<P>,
                "tutti: this policy has a method that takes an event and tutti::State& but is not "
                "called apply, so it would never run; call it apply.");
  static_assert(detail::match_is_spelt_right<P>,
                "tutti: this policy has a method that takes an event and tutti::State& but is not "
                "called match, so it would decide nothing; call it match.");
  static_assert(detail::hooks_are_called_apply<P>,
                "tutti: this policy has a method named after an event, which is not how hooks are "
                "found; write void apply(tutti::BatchEnd, tutti::State&) for batch_end(State&).");
  static_assert(detail::hides_no_hook<P>,
                "tutti: an apply() of this policy hides those of its base class, which would never "
                "run; write `using Base::apply;` beside it, or make the base a member.");
};

/// Refuses a member of `P` that is called almost as one the library looks for; `Wrong` and `Right`
/// are their names.
template <class P, class Wrong, class Right>
struct MemberCheck {
  static_assert(detail::is_looked_for<P, Wrong>,
                "tutti: nobody looks for a member of the first of these names in a policy, so it "
                "would do nothing; give it the second, or one that looks less like it. All are in "
                "docs/policy_members.md.");
};

/// Refuses what is a field of a policy's `rules` or `about` and stands by itself; `Field` is its
/// name, `Of` is Rules or About.
template <class P, class Field, class Of>
struct FieldCheck {
  static_assert(detail::is_looked_for<P, Field>,
                "tutti: nobody looks for a member of this name in a policy, so it would do "
                "nothing; it is a field of a value: static constexpr tutti::Rules "
                "rules{.runs_before = {{tutti::id<Other>, \"reason\"}}}, or static constexpr "
                "tutti::About about{.reads_batch = false}. All are in core/rule.hpp.");
};

/// Refuses a member of `P` that the library looks for and that is something else; `Member` is its
/// name.
template <class P, class Member>
struct ValueCheck {
  static_assert(detail::is_usable<P, Member>,
                "tutti: the library asks the type of a policy, not the policy, for its member of "
                "this name; make it static constexpr and no function.");
};
// A model has a name(), too.
template <class P>
  requires requires { &P::forward; }
struct ValueCheck<P, member::name> {
  static_assert(detail::is_usable<P, member::name>,
                "tutti: this is a model, which is no policy; give it to the trainer as the first "
                "argument and leave it out of the types: tutti::Trainer trainer(model, options).");
};
template <class P>
struct ValueCheck<P, member::events> {
  static_assert(detail::is_usable<P, member::events>,
                "tutti: a policy's member of this name has to be a list, and this is none, so "
                "nothing in it would be found; write tutti::types<...> around it.");
};
template <class P>
struct ValueCheck<P, member::rules> {
  static_assert(detail::is_usable<P, member::rules>,
                "tutti: the rules of a policy are one value of its type, and this is none, so "
                "nothing in it would be found; write static constexpr tutti::Rules rules{...}.");
};
template <class P>
struct ValueCheck<P, member::about> {
  static_assert(detail::is_usable<P, member::about>,
                "tutti: what a policy says of itself is one value of its type, and this is none, "
                "so nothing in it would be found; write static constexpr tutti::About about{...}.");
};
template <class P>
struct ValueCheck<P, member::run> {
  static_assert(detail::is_usable<P, member::run>,
                "tutti: a policy's member of this name is what it holds while it runs, and this is "
                "not of its own type Run, so it would be taken for an option; write struct Run "
                "{ ... } run{}, or give an option another name.");
};

/// Refuses a function of `P` that cannot be called as the library would; `Member` is its name.
template <class P, class Member>
struct MethodCheck;
template <class P>
struct MethodCheck<P, member::validate> {
  static_assert(detail::is_usable<P, member::validate>,
                "tutti: validate() of this policy cannot be called as the library calls "
                "it, so it never would be; write constexpr void validate() const.");
};
template <class P>
struct MethodCheck<P, member::save> {
  static_assert(detail::is_usable<P, member::save>,
                "tutti: save() of this policy cannot be called as the library calls it, "
                "so it never would be; write void save(tutti::Archive&) const.");
};
template <class P>
struct MethodCheck<P, member::load> {
  static_assert(detail::is_usable<P, member::load>,
                "tutti: load() of this policy cannot be called as the library calls it, "
                "so it never would be; write void load(const tutti::Archive&).");
};
template <class P>
struct MethodCheck<P, member::prepare_load> {
  static_assert(detail::is_usable<P, member::prepare_load>,
                "tutti: prepare_load() of this policy cannot be called as the library "
                "calls it, so it never would be; write void prepare_load(const "
                "tutti::Archive&, tutti::State&).");
};
template <class P>
struct MethodCheck<P, member::close> {
  static_assert(detail::is_usable<P, member::close>,
                "tutti: close() of this policy cannot be called as the library calls "
                "it, so it never would be; write void close(tutti::State&).");
};
template <class P>
struct MethodCheck<P, member::leaves_parameters_unused> {
  static_assert(detail::is_usable<P, member::leaves_parameters_unused>,
                "tutti: leaves_parameters_unused() of this policy cannot be called as "
                "the library calls it, so it never would be; write bool "
                "leaves_parameters_unused() const.");
};
template <class P>
struct MethodCheck<P, member::join> {
  static_assert(detail::is_usable<P, member::join>,
                "tutti: join() of this policy cannot be called as the library calls it, "
                "so it never would be; write void join(tutti::optim::FusedStep&, const "
                "tutti::State&).");
};
template <class P>
struct MethodCheck<P, member::pixels> {
  static_assert(detail::is_usable<P, member::pixels>,
                "tutti: pixels() of this policy cannot be called as the library calls "
                "it, so it never would be; write auto pixels(const "
                "tutti::fused::Frame&).");
};
template <class P>
struct MethodCheck<P, member::targets_follow> {
  static_assert(detail::is_usable<P, member::targets_follow>,
                "tutti: targets_follow() of this policy cannot be called as the library "
                "calls it, so it never would be; write bool targets_follow(const "
                "tutti::State&) const.");
};
template <class P>
struct MethodCheck<P, member::wants_type> {
  static_assert(detail::is_usable<P, member::wants_type>,
                "tutti: wants_type() of this policy cannot be called as the library "
                "calls it, so it never would be; write std::optional<at::ScalarType> "
                "wants_type(const tutti::State&) const.");
};
template <class P>
struct MethodCheck<P, member::wants_channels_last> {
  static_assert(detail::is_usable<P, member::wants_channels_last>,
                "tutti: wants_channels_last() of this policy cannot be called as the "
                "library calls it, so it never would be; write bool "
                "wants_channels_last(const tutti::State&) const.");
};
template <class P>
struct MethodCheck<P, member::checkpoint_saver> {
  static_assert(detail::is_usable<P, member::checkpoint_saver>,
                "tutti: checkpoint_saver() of this policy cannot be called as the "
                "library calls it, so it never would be; write "
                "tutti::checkpoint::Saver& checkpoint_saver().");
};
template <class P>
struct MethodCheck<P, member::checkpoint_mirror> {
  static_assert(detail::is_usable<P, member::checkpoint_mirror>,
                "tutti: checkpoint_mirror() of this policy cannot be called as the "
                "library calls it, so it never would be; write "
                "tutti::checkpoint::Mirror& checkpoint_mirror().");
};
template <class P>
struct MethodCheck<P, member::record_event> {
  static_assert(detail::is_usable<P, member::record_event>,
                "tutti: record_event() of this policy cannot be called as the library "
                "calls it, so it never would be; write void "
                "record_event(std::string_view event).");
};
template <class P>
struct MethodCheck<P, member::record_policy> {
  static_assert(detail::is_usable<P, member::record_policy>,
                "tutti: record_policy() of this policy cannot be called as the library "
                "calls it, so it never would be; write void "
                "record_policy(std::string_view event, std::string_view policy, "
                "tutti::Role).");
};
template <class P>
struct MethodCheck<P, member::log_metrics> {
  static_assert(detail::is_usable<P, member::log_metrics>,
                "tutti: log_metrics() of this destination cannot be called as "
                "tutti::Logger calls it, so it would receive nothing; write void "
                "log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t step).");
};
template <class P>
struct MethodCheck<P, member::log_hyperparameters> {
  static_assert(detail::is_usable<P, member::log_hyperparameters>,
                "tutti: log_hyperparameters() of this destination cannot be called as "
                "tutti::Logger calls it, so it would receive nothing; write void "
                "log_hyperparameters(std::span<const tutti::Hyperparameter>).");
};
template <class P>
struct MethodCheck<P, member::log_images> {
  static_assert(detail::is_usable<P, member::log_images>,
                "tutti: log_images() of this destination cannot be called as "
                "tutti::Logger calls it, so it would receive nothing; write void "
                "log_images(const tutti::LoggedImages&, std::int64_t step).");
};
template <class P>
struct MethodCheck<P, member::log_table> {
  static_assert(detail::is_usable<P, member::log_table>,
                "tutti: log_table() of this destination cannot be called as "
                "tutti::Logger calls it, so it would receive nothing; write void "
                "log_table(const tutti::LoggedTable&, std::int64_t step).");
};
template <class P>
struct MethodCheck<P, member::upload_file> {
  static_assert(detail::is_usable<P, member::upload_file>,
                "tutti: upload_file() of this destination cannot be called as "
                "tutti::Logger calls it, so it would receive nothing; write void "
                "upload_file(std::string_view remote_file_name, std::string_view path).");
};
template <class P>
struct MethodCheck<P, member::log_result> {
  static_assert(detail::is_usable<P, member::log_result>,
                "tutti: log_result() of this destination cannot be called as "
                "tutti::Logger calls it, so it would receive nothing; write void "
                "log_result(const tutti::LoggedResult&).");
};
template <class P>
struct MethodCheck<P, member::reads_batch> {
  static_assert(detail::is_usable<P, member::reads_batch>,
                "tutti: reads_batch() of this policy cannot be called as the library calls it, so "
                "it never would be; write bool reads_batch(const tutti::State&) const, or static "
                "constexpr tutti::About about{.reads_batch = false}.");
};
template <class P>
struct MethodCheck<P, member::supports> {
  static_assert(
      detail::is_usable<P, member::supports>,
      "tutti: `supports` of this policy is no template, so no model is asked about; write "
      "template <class Model> static constexpr bool supports = ...");
};
template <class P>
struct MethodCheck<P, member::step> {
  static_assert(detail::is_usable<P, member::step>,
                "tutti: step() of this policy cannot be called as the library calls it, so it "
                "never would be; write template <class Closure, class Update> void "
                "step(tutti::State&, Closure&& closure, Update&& update).");
};

/// Refuses a policy whose state is saved and never read, or the other way round.
template <class P>
struct SaveCheck {
  static_assert(!detail::Saves<P> || detail::Loads<P>,
                "tutti: this policy has save(Archive&) but no load(const Archive&); write both.");
  static_assert(!detail::Loads<P> || detail::Saves<P>,
                "tutti: this policy has load(const Archive&) but no save(Archive&) const; write "
                "both.");
};

/// Refuses a hook that changes a policy which is const in its recipe.
template <class P, class E>
struct ConstCheck {
  static_assert(detail::apply_is_const<P, E>,
                "tutti: the policy is const in this recipe and its apply() for this event is not; "
                "add const after the parameters of apply(), or take it off the policy.");
};

/// Refuses a policy whose model lacks what it needs.
template <class P, class M>
struct ModelCheck {
  static_assert(detail::supported<P, M>,
                "tutti: this policy cannot work on this model, whose features are not what the "
                "policy's `supports` asks for; take the policy out, or see its method card for "
                "models that will do.");
  static_assert(detail::replaces_nothing<P, M>,
                "tutti: this policy replaces layers or stores weights in another order, and an "
                "exported model has no layers; change the model in Python before the export "
                "(docs/compiled.md), or train a network of tutti.");
};

/// Refuses a policy that would never be called.
template <class P>
struct ActsCheck {
  static_assert(detail::apply_is_public<P>,
                "tutti: this policy's apply() is private or protected, so nobody can call it; make "
                "it public.");
  static_assert(detail::acts_on_an_event<P> || !detail::apply_is_public<P>,
                "tutti: this type is no policy, it acts on no event; give it a public overload of "
                "void apply(Event, tutti::State&), for instance apply(tutti::BatchEnd, "
                "tutti::State&).");
};

}  // namespace tutti
