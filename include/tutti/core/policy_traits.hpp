// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/rule.hpp>
#include <tutti/fwd.hpp>

namespace tutti {

namespace detail {

// P has such a value: static, constexpr and of that type. Any other member of its name is refused
// by ValueCheck (core/check.hpp).
template <class P>
concept NamesRules = requires { requires std::is_same_v<decltype(&P::rules), const Rules*>; };
template <class P>
concept NamesAbout = requires { requires std::is_same_v<decltype(&P::about), const About*>; };
template <class P, class = void>
inline constexpr bool is_constant_rules = false;
template <class P>
inline constexpr bool
    is_constant_rules<P, std::enable_if_t<(P::rules.tags.size() != std::size_t(-1))>> = true;
template <class P, class = void>
inline constexpr bool is_constant_about = false;
template <class P>
inline constexpr bool
    is_constant_about<P, std::enable_if_t<(P::about.fuses_into_step.size() != std::size_t(-1))>> =
        true;
template <class P>
concept HasRules = NamesRules<P> && is_constant_rules<P>;
template <class P>
concept HasAbout = NamesAbout<P> && is_constant_about<P>;

inline constexpr Rules no_rules{};
inline constexpr About nothing_about{};

template <class P>
consteval const Rules& rules_of() {
  if constexpr (HasRules<P>) {
    return P::rules;
  } else {
    return no_rules;
  }
}
template <class P>
consteval const About& about_of() {
  if constexpr (HasAbout<P>) {
    return P::about;
  } else {
    return nothing_about;
  }
}

template <class P>
concept ListsEvents = requires { typename P::events; };
template <class P, class E>
concept Lists = contains<E, typename P::events>;
template <class P>
struct ListedEvents {
  using type = types<>;
};
template <ListsEvents P>
struct ListedEvents<P> {
  using type = typename P::events;
};

template <class P>
constexpr std::string_view declared_name() {
  if constexpr (requires { std::string_view{P::name}; }) {
    return P::name;
  } else {
    return type_name<P>();
  }
}

// What others' rules call a policy: its type and its tags, which of a Switch begin with what it
// holds; with its rules. Pointers, since compilers are slow at calling functions.
struct Facts {
  const char* self = nullptr;
  const Id* tags = nullptr;
  std::size_t size = 0;
  const Rules* rules = nullptr;
};

}  // namespace detail

/// All that a policy's type says as a value or a list, read here and nowhere else; what it leaves
/// out has its default. A Switch says what the policy inside says, but for its name.
template <class P>
struct policy_traits {
  /// Its member `name`, else the type's name without namespaces and arguments.
  static constexpr std::string_view name = detail::declared_name<P>();

  /// It has a member `role`; and one `events`, which is that list.
  static constexpr bool has_role = requires { P::role; };
  static constexpr bool lists_events = detail::ListsEvents<P>;
  using events = typename detail::ListedEvents<P>::type;

  /// Its members `rules` and `about`.
  static constexpr const Rules& rules = detail::rules_of<detail::Unswitched<P>>();
  static constexpr const About& about = detail::about_of<detail::Unswitched<P>>();
};

namespace detail {

// The functions and members of its objects that the library looks for: concepts, which cost
// nothing where nobody asks. Hooks, and what receives logs or records, are in core/policy.hpp;
// `supports` is in core/tags.hpp, `pixels` in fused/pixels.hpp.
template <class P>
concept Validates = requires(const P& policy) { policy.validate(); };
template <class P, class Other>
concept ValidatesWith =
    requires(const P& policy, const Other& other) { policy.validate_with(other); };
template <class P, class M>
concept ValidatesModel = requires(const P& policy) { policy.template validate_model<M>(); };
template <class P>
concept Saves = requires(const P& policy, Archive& archive) { policy.save(archive); };
template <class P>
concept Loads = requires(P& policy, const Archive& archive) { policy.load(archive); };
template <class P>
concept PreparesLoad = requires(P& policy, const Archive& archive, State& state) {
  policy.prepare_load(archive, state);
};
template <class P>
concept TakesLoaded = requires(P& policy, State& state) { policy.take_loaded(state); };
template <class P>
concept TakesShards = requires(P& policy, State& state) { policy.take_shards(state); };
template <class P>
concept KeepsElsewhere =
    requires(const P& policy, const State& state) { policy.kept_elsewhere(state); };
template <class P>
concept EntersCheckpoint = requires(P& policy, State& state) { policy.enter_checkpoint(state); };
template <class P>
concept LeavesCheckpoint = requires(P& policy, State& state) { policy.leave_checkpoint(state); };
template <class P>
concept HasSaver = requires(P& policy) { policy.checkpoint_saver(); };
template <class P>
concept HasMirror = requires(P& policy) { policy.checkpoint_mirror(); };
template <class P>
concept Closes = requires(P& policy, State& state) { policy.close(state); };
template <class P>
concept TakesStep = requires(P& policy, State& state, bool (&closure)(bool), void (&update)()) {
  policy.step(state, closure, update);
};
template <class P>
concept MayLeaveUnused = requires(const P& policy) { policy.leaves_parameters_unused(); };
template <class P>
concept MayRefuseSharding = requires(const P& policy) { policy.why_no_sharding(); };
template <class P>
concept KnowsWhenItReads =
    requires(const P& policy, const State& state) { policy.reads_batch(state); };
template <class P>
concept WantsChannelsLast =
    requires(const P& policy, const State& state) { policy.wants_channels_last(state); };
template <class P>
concept WantsType = requires(const P& policy, const State& state) { policy.wants_type(state); };
template <class P>
concept TargetsFollow = requires(const P& policy, const State& state) {
  { policy.targets_follow(state) } -> std::same_as<bool>;
};
template <class P>
concept Draws = requires(P& policy) { policy.rng; };
// Its member `run`, what it holds while it runs, is of its own type `Run`: no option.
template <class P>
concept HoldsRun =
    requires(P& policy) { requires std::is_same_v<decltype(policy.run), typename P::Run>; };
template <class P, class Base>
concept BringsEngine = requires { typename P::template engine<Base>; };

template <class P>
inline constexpr Facts facts{&Mark<P>::at, policy_traits<P>::rules.tags.begin(),
                             policy_traits<P>::rules.tags.size(), &policy_traits<P>::rules};
template <class P>
inline constexpr std::array tags_in_switch = [] {
  std::array<Id, 1 + facts<P>.size> out{id<P>};
  for (std::size_t i = 1; i < out.size(); ++i) {
    out[i] = facts<P>.tags[i - 1];
  }
  return out;
}();
template <class P, auto Tag>
inline constexpr Facts facts<Switch<P, Tag>>{&Mark<Switch<P, Tag>>::at, tags_in_switch<P>.data(),
                                             tags_in_switch<P>.size(), &policy_traits<P>::rules};

// A type or tag in a rule, given by its mark, means the policy of those facts.
constexpr bool denotes(const char* mark, const Facts& policy) {
  bool found = TUTTI_SAME_TYPE(policy.self, mark);
  for (std::size_t i = 0; i < policy.size && !found; ++i) {
    found = TUTTI_SAME_TYPE(policy.tags[i].mark, mark);
  }
  return found;
}

// Which rule of a list is the first about that policy; the list's size when none is.
constexpr std::size_t find_rule(std::initializer_list<Rule> list, const Facts& policy) {
  std::size_t at = 0;
  for (const Rule& rule : list) {
    if (denotes(rule.id.mark, policy)) {
      break;
    }
    ++at;
  }
  return at;
}
constexpr bool has_rule(std::initializer_list<Rule> list, const Facts& policy) {
  return find_rule(list, policy) < list.size();
}

// `Name` in a rule means `P`.
template <class Name, class P>
inline constexpr bool means = denotes(&Mark<Name>::at, facts<P>);

}  // namespace detail

}  // namespace tutti
