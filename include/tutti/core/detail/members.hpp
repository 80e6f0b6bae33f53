// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include <tutti/core/policy.hpp>

/// The optional members of a policy, which the library finds by their names: near misses of these
/// names, and what a member of the right name has to be.
///
/// C++20 cannot list the members of a type; it can say whether a type has a member of a given name.
/// So the near misses are a fixed set, made of each name by four rules: an s more or less, two
/// letters exchanged or one left out, camel case, and what others call it (Composer's names).
namespace tutti {

namespace detail {

template <class M>
inline constexpr bool is_method =
    std::is_member_function_pointer_v<M> || std::is_function_v<std::remove_pointer_t<M>>;

// Members by their kind. A value may be static, a data member or a function.
#define TUTTI_HAS_list(member) requires { typename P::member; }
#define TUTTI_HAS_rules(member) \
  requires { requires std::is_same_v<decltype(&P::member), const Rules*>; }
#define TUTTI_HAS_about(member) \
  requires { requires std::is_same_v<decltype(&P::member), const About*>; }
#define TUTTI_HAS_value(member) requires { &P::member; }
#define TUTTI_HAS_logger(member) \
  requires {                     \
    &P::member;                  \
    requires ReceivesMetrics<P>; \
  }
#define TUTTI_HAS_method(member) requires { requires is_method<decltype(&P::member)>; }

// Kind, name, near miss.
#define TUTTI_NEAR_MISSES(with)                                                                    \
  with(list, events, event), with(list, events, evnets), with(list, events, Events),               \
      with(value, name, nmae), with(value, name, Name), with(value, role, roel),                   \
      with(value, role, rloe), with(rules, rules, rule), with(rules, rules, ruels),                \
      with(rules, rules, rulse), with(rules, rules, Rules), with(about, about, abouts),            \
      with(about, about, abuot), with(about, about, aobut), with(about, about, About),             \
      with(value, rng, rgn), with(value, rng, rngs), with(value, run, rnu), with(value, run, urn), \
      with(method, validate, vaildate), with(method, validate, valdiate),                          \
      with(method, validate, validtae), with(method, validate, valdate),                           \
      with(method, validate, validates), with(method, validate, Validate),                         \
      with(method, validate_model, vaildate_model), with(method, validate_model, validates_model), \
      with(method, validate_model, validate_models), with(method, validate_model, validateModel),  \
      with(method, validate_with, vaildate_with), with(method, validate_with, validates_with),     \
      with(method, validate_with, validate_wiht), with(method, validate_with, validateWith),       \
      with(method, save, svae), with(method, save, saves), with(method, save, save_state),         \
      with(method, save, state_dict), with(method, load, laod), with(method, load, loads),         \
      with(method, load, load_state), with(method, load, load_state_dict),                         \
      with(method, prepare_load, preapre_load), with(method, prepare_load, prepares_load),         \
      with(method, prepare_load, prepareLoad),                                                     \
      with(method, leaves_parameters_unused, leave_parameters_unused),                             \
      with(method, leaves_parameters_unused, leaves_parameter_unused),                             \
      with(method, leaves_parameters_unused, leaves_unused_parameters),                            \
      with(method, leaves_parameters_unused, leavesParametersUnused), with(method, close, clsoe),  \
      with(method, close, closes), with(method, close, Close), with(method, close, post_close),    \
      with(method, step, setp), with(method, step, stpe), with(method, join, jion),                \
      with(method, join, joins), with(method, pixels, pixel), with(method, pixels, piexls),        \
      with(method, log_metrics, log_metric), with(method, log_metrics, logs_metrics),              \
      with(method, log_metrics, log_metircs), with(method, log_metrics, log_mertics),              \
      with(method, log_metrics, logMetrics),                                                       \
      with(method, log_hyperparameters, log_hyperparameter),                                       \
      with(method, log_hyperparameters, log_hyper_parameters),                                     \
      with(method, log_hyperparameters, log_hyperparams),                                          \
      with(method, log_hyperparameters, log_hparams),                                              \
      with(method, log_hyperparameters, log_hyperparamters),                                       \
      with(method, log_hyperparameters, logHyperparameters), with(method, log_images, log_image),  \
      with(method, log_images, log_iamges), with(method, log_images, logImages),                   \
      with(method, log_table, log_tables), with(method, log_table, log_talbe),                     \
      with(method, log_table, logTable), with(method, upload_file, upload_files),                  \
      with(method, upload_file, uplaod_file), with(method, upload_file, uploadFile),               \
      with(method, upload_file, log_file_artifact), with(method, log_result, log_results),         \
      with(method, log_result, log_reslut), with(method, log_result, logResult),                   \
      with(method, record_event, record_events), with(method, record_event, records_event),        \
      with(method, record_event, recordEvent), with(method, record_policy, record_policies),       \
      with(method, record_policy, records_policy), with(method, record_policy, recordPolicy),      \
      with(method, checkpoint_saver, checkpoint_savers),                                           \
      with(method, checkpoint_saver, checkpointSaver),                                             \
      with(method, checkpoint_mirror, checkpoint_mirrors),                                         \
      with(method, checkpoint_mirror, checkpointMirror),                                           \
      with(method, targets_follow, target_follows), with(method, targets_follow, targets_follows), \
      with(method, targets_follow, targetsFollow), with(method, wants_type, want_type),            \
      with(method, wants_type, wants_types), with(method, wants_type, wantsType),                  \
      with(method, wants_channels_last, want_channels_last),                                       \
      with(method, wants_channels_last, wants_channel_last),                                       \
      with(method, wants_channels_last, wantsChannelsLast),                                        \
      with(method, enter_checkpoint, enters_checkpoint),                                           \
      with(method, enter_checkpoint, enterCheckpoint),                                             \
      with(method, leave_checkpoint, leaves_checkpoint),                                           \
      with(method, leave_checkpoint, leaveCheckpoint), with(method, take_loaded, takes_loaded),    \
      with(method, take_loaded, takeLoaded), with(method, take_shards, take_shard),                \
      with(method, take_shards, takes_shards), with(method, kept_elsewhere, keeps_elsewhere),      \
      with(method, kept_elsewhere, kept_elswhere),                                                 \
      with(logger, metrics_interval, metric_interval),                                             \
      with(logger, metrics_interval, metrics_intervals),                                           \
      with(method, why_no_sharding, why_not_sharding), with(value, reads_batch, read_batch),       \
      with(value, reads_batch, readsBatch), with(list, runs_before, run_before),                   \
      with(list, runs_after, run_after), with(list, conflicts_with, conflict_with),                \
      with(list, requires_policy, require_policy)

// Members that are values or lists of the type, and the one of a type of its own; by what they are
// when they are wrong.
#define TUTTI_VALUES(with)                                                              \
  with(events, NoEvents), with(name, NoName), with(role, NoRole), with(rules, NoRules), \
      with(about, NoAbout), with(run, NoRun)

// What was a member by itself once, and is a field of the rules or of what a policy is about.
#define TUTTI_RULES_FIELDS(with)                                                         \
  with(tags), with(runs_before), with(runs_after), with(runs_first), with(runs_last),    \
      with(conflicts_with), with(requires_policy), with(warns_with), with(checked_with), \
      with(works_with), with(in_graph), with(ahead_of_graph), with(behind_graph),        \
      with(instead_of_graph)
#define TUTTI_ABOUT_LISTS(with) with(fuses_into_step), with(only_watches)
#define TUTTI_ABOUT_VALUES(with)                                                                  \
  with(reads_batch), with(reads_gradients), with(skips_steps), with(no_graph), with(no_sharding), \
      with(no_parameter_sharding)

// Functions, as they are called for a policy `p`, or for a const one `c`.
#define TUTTI_METHODS(with)                                                              \
  with(validate, c.validate()), with(save, c.save(sample::archive)),                     \
      with(load, p.load(sample::const_archive)),                                         \
      with(prepare_load, p.prepare_load(sample::const_archive, sample::state)),          \
      with(close, p.close(sample::state)),                                               \
      with(leaves_parameters_unused, c.leaves_parameters_unused()),                      \
      with(why_no_sharding, c.why_no_sharding()),                                        \
      with(enter_checkpoint, p.enter_checkpoint(sample::state)),                         \
      with(leave_checkpoint, p.leave_checkpoint(sample::state)),                         \
      with(take_loaded, p.take_loaded(sample::state)),                                   \
      with(take_shards, p.take_shards(sample::state)),                                   \
      with(kept_elsewhere, c.kept_elsewhere(sample::const_state)),                       \
      with(join, p.join(sample::fused_step, sample::const_state)),                       \
      with(pixels, p.pixels(sample::frame)),                                             \
      with(targets_follow, c.targets_follow(sample::const_state)),                       \
      with(wants_type, c.wants_type(sample::const_state)),                               \
      with(wants_channels_last, c.wants_channels_last(sample::const_state)),             \
      with(checkpoint_saver, p.checkpoint_saver()),                                      \
      with(checkpoint_mirror, p.checkpoint_mirror()),                                    \
      with(record_event, p.record_event(sample::text)),                                  \
      with(record_policy, p.record_policy(sample::text, sample::text, Role::algorithm)), \
      with(reads_batch, c.reads_batch(sample::const_state))

// Functions that receive what is logged.
#define TUTTI_DESTINATIONS(with)                                                          \
  with(log_metrics, ReceivesMetrics), with(log_hyperparameters, ReceivesHyperparameters), \
      with(log_images, ReceivesImages), with(log_table, ReceivesTable),                   \
      with(upload_file, ReceivesFiles), with(log_result, ReceivesResult)

#define TUTTI_MISSPELT(kind, right, wrong) TUTTI_HAS_##kind(wrong)
#define TUTTI_MISSES(kind, right, wrong) (TUTTI_HAS_##kind(wrong) && !TUTTI_HAS_##kind(right))
#define TUTTI_MISS(kind, right, wrong) Miss<struct right, struct wrong>

// Conditions by which a member of the right name is something else.
#define TUTTI_NO_VALUE(member, condition) condition<P>
#define TUTTI_OLD_LIST(member) requires { typename P::member; }
#define TUTTI_OLD_VALUE(member) requires { requires !is_method<decltype(&P::member)>; }
#define TUTTI_MISCALLED(member, call)               \
  requires {                                        \
    requires is_method<decltype(&P::member)>;       \
    requires !requires(P& p, const P& c) { call; }; \
  }
// Of destinations also overloads for something else, found by their arguments.
#define TUTTI_DEAF(member, receives)                                           \
  ((                                                                           \
       TUTTI_HAS_method(member) || requires(P& p) { p.member(Anything{}); } || \
       requires(P& p) { p.member(Anything{}, Anything{}); }) &&                \
   !receives<P>)
// A function of this name is the library's if it begins with the state.
#define TUTTI_NO_STEP()                                                      \
  ((                                                                         \
       requires(P& p) { p.step(sample::state); } ||                          \
       requires(P& p) { p.step(sample::state, Anything{}); } ||              \
       requires(P& p) { p.step(sample::state, Anything{}, Anything{}); }) && \
   !requires(P& p) { p.step(sample::state, sample::closure, sample::update); })
#define TUTTI_NAME(member, ...) struct member

namespace sample {  // arguments for calls that are only asked about
extern State& state;
extern const State& const_state;
extern Archive& archive;
extern const Archive& const_archive;
extern optim::FusedStep& fused_step;
extern const fused::Frame& frame;
extern const std::string_view text;
extern bool (&closure)(bool);
extern void (&update)();
}  // namespace sample

template <class List>
inline constexpr bool is_types = false;
template <class... Ts>
inline constexpr bool is_types<types<Ts...>> = true;

template <bool... Any>
inline constexpr bool any_of = (Any || ...);

template <class P>
concept NoEvents = requires { requires !is_types<typename P::events>; };
template <class Pointer>  // to a member: of every object, or a function
inline constexpr bool is_of_object = is_method<Pointer> || std::is_member_object_pointer_v<Pointer>;
template <class P>
concept NoName = requires { requires is_of_object<decltype(&P::name)>; };
template <class P>
concept NoRole = requires { requires is_of_object<decltype(&P::role)>; };
// In a concept, Clang takes a value with a misspelt field for a constant: it has said so already.
template <class P>
concept NoRules = !HasRules<P> && !(NamesRules<P> && requires {
  typename std::bool_constant<(P::rules.tags.size() > 0)>;
}) && (requires { &P::rules; } || requires { typename P::rules; });
template <class P>
concept NoAbout = !HasAbout<P> && !(NamesAbout<P> && requires {
  typename std::bool_constant<(P::about.fuses_into_step.size() > 0)>;
}) && (requires { &P::about; } || requires { typename P::about; });

template <class P>
concept NoRun =
    !HoldsRun<P> && requires { requires std::is_member_object_pointer_v<decltype(&P::run)>; };

// One expression each, asked of every policy; the arrays say which it was.
template <class P>
concept HasNearMiss = any_of<TUTTI_NEAR_MISSES(TUTTI_MISSPELT)>;
template <class P>
concept MisusesMember =
    any_of<TUTTI_VALUES(TUTTI_NO_VALUE), TUTTI_RULES_FIELDS(TUTTI_OLD_LIST),
           TUTTI_ABOUT_LISTS(TUTTI_OLD_LIST), TUTTI_ABOUT_VALUES(TUTTI_OLD_VALUE),
           TUTTI_METHODS(TUTTI_MISCALLED), TUTTI_DESTINATIONS(TUTTI_DEAF),
           TUTTI_HAS_value(supports), TUTTI_NO_STEP()>;

template <class P>
inline constexpr std::array near_misses{TUTTI_NEAR_MISSES(TUTTI_MISSES)};
template <class P>
inline constexpr std::array no_values{TUTTI_VALUES(TUTTI_NO_VALUE)};
template <class P>
inline constexpr std::array old_rules{TUTTI_RULES_FIELDS(TUTTI_OLD_LIST)};
template <class P>
inline constexpr std::array old_facts{TUTTI_ABOUT_LISTS(TUTTI_OLD_LIST),
                                      TUTTI_ABOUT_VALUES(TUTTI_OLD_VALUE)};
template <class P>
inline constexpr std::array miscalled{TUTTI_METHODS(TUTTI_MISCALLED),
                                      TUTTI_DESTINATIONS(TUTTI_DEAF), TUTTI_HAS_value(supports),
                                      TUTTI_NO_STEP()};

template <class P>
inline constexpr bool has_true =
    std::find(near_misses<P>.begin(), near_misses<P>.end(), true) != near_misses<P>.end();
template <class P>
concept RightMembers =
    (!HasNearMiss<P> || !has_true<P>) && !MisusesMember<P> && Saves<P> == Loads<P>;

}  // namespace detail

/// Names of members, as checks print them.
namespace member {

template <class Right, class Wrong>
struct Miss {
  using right = Right;
  using wrong = Wrong;
};

// In the order of the arrays above.
using near_misses = types<TUTTI_NEAR_MISSES(TUTTI_MISS)>;
using values = types<TUTTI_VALUES(TUTTI_NAME)>;
using rules_fields = types<TUTTI_RULES_FIELDS(TUTTI_NAME)>;
using about_fields = types<TUTTI_ABOUT_LISTS(TUTTI_NAME), TUTTI_ABOUT_VALUES(TUTTI_NAME)>;
using methods =
    types<TUTTI_METHODS(TUTTI_NAME), TUTTI_DESTINATIONS(TUTTI_NAME), struct supports, struct step>;

}  // namespace member

#undef TUTTI_HAS_list
#undef TUTTI_HAS_rules
#undef TUTTI_HAS_about
#undef TUTTI_HAS_value
#undef TUTTI_HAS_logger
#undef TUTTI_HAS_method
#undef TUTTI_NEAR_MISSES
#undef TUTTI_VALUES
#undef TUTTI_RULES_FIELDS
#undef TUTTI_ABOUT_LISTS
#undef TUTTI_ABOUT_VALUES
#undef TUTTI_METHODS
#undef TUTTI_DESTINATIONS
#undef TUTTI_MISSPELT
#undef TUTTI_MISSES
#undef TUTTI_MISS
#undef TUTTI_NO_VALUE
#undef TUTTI_OLD_LIST
#undef TUTTI_OLD_VALUE
#undef TUTTI_MISCALLED
#undef TUTTI_DEAF
#undef TUTTI_NO_STEP
#undef TUTTI_NAME

}  // namespace tutti
