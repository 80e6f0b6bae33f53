// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include <tutti/core/detail/order.hpp>
#include <tutti/core/policy.hpp>

/// Recipe::describe(): the plan of a recipe as a text that the compiler writes.
namespace tutti::detail {

// Counts characters when there is nowhere to write.
struct PlanWriter {
  char* out = nullptr;
  std::size_t size = 0;

  constexpr PlanWriter& operator<<(std::string_view text) {
    for (const char c : text) {
      if (out != nullptr) {
        out[size] = c;
      }
      ++size;
    }
    return *this;
  }
};

template <class... Ps>
constexpr void write_names(PlanWriter& to, types<Ps...>) {
  bool first = true;
  ((to << (first ? "" : ", ") << name_of<Ps>(), first = false), ...);
}

template <class R, class... Es>
constexpr void write_events(PlanWriter& to, types<Es...>) {
  const auto one = [&]<class E>(E) {
    if constexpr (R::template handles<E>) {
      to << "  " << E::name << ": ";
      write_names(to, typename R::template order<E>{});
      to << "\n";
    }
  };
  (one(Es{}), ...);
}

template <class P>
constexpr void write_tags(PlanWriter& to) {
  if constexpr (!is_directive<P>) {
    to << "  " << name_of<P>() << " (" << to_string(role_of<P>) << ")";
    std::string_view before = ": ";
    if constexpr (is_switch<P>) {  // what it holds is what it is in others' rules
      to << before << name_of<Unswitched<P>>();
      before = ", ";
    }
    for (const Id& tag : policy_traits<P>::rules.tags) {
      to << before << tag.name();
      before = ", ";
    }
    to << "\n";
  }
}

// The lines of one list of A's rules about another policy of the pack.
template <class A, class B>
constexpr void write_rules_about(PlanWriter& to, std::string_view verb,
                                 std::initializer_list<Rule> rules) {
  for (const Rule& rule : rules) {
    if (!std::is_same_v<A, B> && denotes(rule.id.mark, facts<B>)) {
      to << "  " << name_of<A>() << " " << verb << " " << name_of<B>();
      if (rule.id != id<B>) {
        using Inner = Unswitched<B>;
        to << " (" << (rule.id == id<Inner> ? name_of<Inner>() : rule.id.name()) << ")";
      }
      const std::string_view reason = rule.reason;
      to << (reason.empty() ? "" : ", because ") << reason << "\n";
    }
  }
}

template <class A, class B>
constexpr void write_rules_between(PlanWriter& to) {
  const Rules& rules = policy_traits<A>::rules;
  write_rules_about<A, B>(to, "runs before", rules.runs_before);
  write_rules_about<A, B>(to, "runs after", rules.runs_after);
  write_rules_about<A, B>(to, "requires", rules.requires_policy);
  if constexpr (!is_switch<A>) {
    write_rules_about<A, B>(to, "works against", rules.warns_with);
  }
  write_rules_about<A, B>(to, "is checked with", rules.checked_with);
  write_rules_about<A, B>(to, "works with", rules.works_with);
}

constexpr void write_pins(PlanWriter& to, std::string_view who, std::string_view verb,
                          std::initializer_list<EventId> events) {
  for (const EventId event : events) {
    to << "  " << who << " " << verb << " " << to_string(event) << "\n";
  }
}

template <class A, class... Ps>
constexpr void write_rules(PlanWriter& to) {
  write_pins(to, name_of<A>(), "runs first at", policy_traits<A>::rules.runs_first);
  write_pins(to, name_of<A>(), "runs last at", policy_traits<A>::rules.runs_last);
  (write_rules_between<A, Ps>(to), ...);
}

template <class R, class... Ps>
constexpr void write_plan(PlanWriter& to) {
  to << "recipe: ";
  write_names(to, types<Ps...>{});
  to << (sizeof...(Ps) == 0 ? "(no policies)\n" : "\nevents:\n");
  write_events<R>(to, all_events{});
  if (sizeof...(Ps) > 0) {
    to << "policies:\n";
    (write_tags<Ps>(to), ...);
    PlanWriter rules;
    (write_rules<Ps, Ps...>(rules), ...);
    if (rules.size > 0) {
      to << "rules:\n";
      (write_rules<Ps, Ps...>(to), ...);
    }
  }
}

template <class R, class... Ps>
consteval std::size_t plan_size() {
  PlanWriter counted;
  write_plan<R, Ps...>(counted);
  return counted.size;
}

template <class R, class... Ps>
inline constexpr auto plan_characters = [] {
  std::array<char, plan_size<R, Ps...>() + 1> text{};  // ends with a zero, for C's functions
  PlanWriter writer{text.data()};
  write_plan<R, Ps...>(writer);
  return text;
}();

template <class R, class... Ps>
inline constexpr std::string_view plan_text{plan_characters<R, Ps...>.data(),
                                            plan_characters<R, Ps...>.size() - 1};

}  // namespace tutti::detail
