// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
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
    if constexpr (decltype(tags_of<P>())::size > 0) {
      to << ": ";
      write_names(to, decltype(tags_of<P>()){});
    }
    to << "\n";
  }
}

// The lines of one list of A's rules about the other policies of the pack.
template <class A, class B, class... Entries>
constexpr void write_rules_about(PlanWriter& to, std::string_view verb, types<Entries...>) {
  const auto one = [&]<class Entry>(std::type_identity<Entry>) {
    using Name = typename RuleEntry<Entry>::type;
    if constexpr (means<Entry, B> && !std::is_same_v<A, B>) {
      constexpr std::string_view reason = RuleEntry<Entry>::reason;
      to << "  " << name_of<A>() << " " << verb << " " << name_of<B>();
      if (!std::is_same_v<Name, B>) {
        to << " (" << name_of<Name>() << ")";
      }
      to << (reason.empty() ? "" : ", because ") << reason << "\n";
    }
  };
  (one(std::type_identity<Entries>{}), ...);
}

template <class A, class B>
constexpr void write_rules_between(PlanWriter& to) {
#define TUTTI_WRITE_RULES(list, verb)                      \
  if constexpr (requires { typename A::list; }) {          \
    write_rules_about<A, B>(to, verb, typename A::list{}); \
  }
  TUTTI_WRITE_RULES(runs_before, "runs before")
  TUTTI_WRITE_RULES(runs_after, "runs after")
  TUTTI_WRITE_RULES(requires_policy, "requires")
  TUTTI_WRITE_RULES(warns_with, "works against")
  TUTTI_WRITE_RULES(checked_with, "is checked with")
  TUTTI_WRITE_RULES(works_with, "works with")
#undef TUTTI_WRITE_RULES
}

template <class... Es>
constexpr void write_pins(PlanWriter& to, std::string_view who, std::string_view verb,
                          types<Es...>) {
  ((to << "  " << who << " " << verb << " " << Es::name << "\n"), ...);
}

template <class A, class... Ps>
constexpr void write_rules(PlanWriter& to) {
  if constexpr (requires { typename A::runs_first; }) {
    write_pins(to, name_of<A>(), "runs first at", typename A::runs_first{});
  }
  if constexpr (requires { typename A::runs_last; }) {
    write_pins(to, name_of<A>(), "runs last at", typename A::runs_last{});
  }
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
