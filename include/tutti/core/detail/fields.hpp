// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <tutti/core/policy_traits.hpp>

/// The members of an aggregate by name and value, for reports; C++20 has no reflection, so the
/// names come from what the compiler prints for a pointer to each.
namespace tutti::detail {

struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, class... Fields>
consteval std::size_t count_fields() {
  if constexpr (requires { T{Fields{}..., AnyField{}}; }) {
    return count_fields<T, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

inline constexpr std::size_t most_fields = 20;

/// Calls `f` with the members of `value`, an aggregate of at most 20 without base classes.
/// Reports of policies use this one: a tuple's functions would be compiled for every policy.
template <class T, class F>
constexpr decltype(auto) with_fields(T& value, F&& f) {
  constexpr std::size_t size = count_fields<std::remove_const_t<T>>();
  static_assert(size <= most_fields);
#define TUTTI_FIELDS(number, ...) \
  if constexpr (size == number) { \
    auto& [__VA_ARGS__] = value;  \
    return f(__VA_ARGS__);        \
  } else
  TUTTI_FIELDS(20, a, b, c, d, e, f1, g, h, i, j, k, l, m, n, o, p, q, r, s, t)
  TUTTI_FIELDS(19, a, b, c, d, e, f1, g, h, i, j, k, l, m, n, o, p, q, r, s)
  TUTTI_FIELDS(18, a, b, c, d, e, f1, g, h, i, j, k, l, m, n, o, p, q, r)
  TUTTI_FIELDS(17, a, b, c, d, e, f1, g, h, i, j, k, l, m, n, o, p, q)
  TUTTI_FIELDS(16, a, b, c, d, e, f1, g, h, i, j, k, l, m, n, o, p)
  TUTTI_FIELDS(15, a, b, c, d, e, f1, g, h, i, j, k, l, m, n, o)
  TUTTI_FIELDS(14, a, b, c, d, e, f1, g, h, i, j, k, l, m, n)
  TUTTI_FIELDS(13, a, b, c, d, e, f1, g, h, i, j, k, l, m)
  TUTTI_FIELDS(12, a, b, c, d, e, f1, g, h, i, j, k, l)
  TUTTI_FIELDS(11, a, b, c, d, e, f1, g, h, i, j, k)
  TUTTI_FIELDS(10, a, b, c, d, e, f1, g, h, i, j)
  TUTTI_FIELDS(9, a, b, c, d, e, f1, g, h, i)
  TUTTI_FIELDS(8, a, b, c, d, e, f1, g, h)
  TUTTI_FIELDS(7, a, b, c, d, e, f1, g)
  TUTTI_FIELDS(6, a, b, c, d, e, f1)
  TUTTI_FIELDS(5, a, b, c, d, e)
  TUTTI_FIELDS(4, a, b, c, d)
  TUTTI_FIELDS(3, a, b, c)
  TUTTI_FIELDS(2, a, b)
  TUTTI_FIELDS(1, a) {
    return f();
  }
#undef TUTTI_FIELDS
}

/// References to them.
template <class T>
constexpr auto tie_fields(T& value) {
  return with_fields(value, [](auto&... members) { return std::tie(members...); });
}

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
// Somewhere for a T to be, that is never there: only addresses of its members are named.
template <class T>
union NeverMade {
  char nothing;
  T value;
  constexpr NeverMade() : nothing() {}
  ~NeverMade() {}
};
template <class T>
extern const NeverMade<T> never_made;

template <class T>
struct FieldPointer {
  T* pointer;
};
template <class T>
FieldPointer(T*) -> FieldPointer<T>;

struct AnyReference {
  template <class T>
  constexpr AnyReference(const T&) {}
};
template <std::size_t>
using Skipped = AnyReference;

// A pointer to the argument behind as many as there are I.
template <std::size_t... I>
consteval auto pointer_behind(std::index_sequence<I...>) {
  return [](const Skipped<I>&..., auto& wanted, auto&...) { return FieldPointer{&wanted}; };
}

template <class T, std::size_t I>
consteval auto field_pointer() {
  return with_fields(never_made<T>.value, pointer_behind(std::make_index_sequence<I>{}));
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

template <auto Pointer>
consteval std::string_view field_text() {
  return __PRETTY_FUNCTION__;
}

/// The name of member `I` of `T`.
template <class T, std::size_t I>
consteval std::string_view field_name() {
  std::string_view text = field_text<field_pointer<T, I>()>();
#if defined(__clang__)
  text = text.substr(0, text.rfind('}'));
  return text.substr(text.rfind('.') + 1);
#else
  text = text.substr(0, text.find(")}"));
  return text.substr(text.rfind("::") + 2);
#endif
}

template <class T, std::size_t... I>
consteval std::array<std::string_view, sizeof...(I)> all_field_names(std::index_sequence<I...>) {
  return {field_name<T, I>()...};
}
template <class T>
inline constexpr auto field_names =
    all_field_names<T>(std::make_index_sequence<count_fields<T>()>{});

/// The name of an enumerator, of those that are 0 to 15; empty for any other value.
template <class E>
  requires(std::is_enum_v<E> && !std::is_convertible_v<E, int>)
constexpr std::string_view enumerator_name(E value) {
  std::string_view name;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((name = value == static_cast<E>(I) ? field_text<static_cast<E>(I)>() : name), ...);
  }(std::make_index_sequence<16>{});
  name = name.substr(0, name.find_first_of(";]"));
  const std::size_t last = name.find_last_of(":)");  // of "E::name", or "(E)7" for no enumerator
  return last < name.size() && name[last] == ':' ? name.substr(last + 1) : std::string_view();
}

// Converts to base classes of T alone, which are initialised ahead of its members.
template <class T>
struct AnyBase {
  template <class Base>
    requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>)
  operator Base() const;
};

template <std::size_t>
using FieldAt = AnyField;

// T has a member behind those that were counted: one that nothing of unknown type converts to.
template <class T, std::size_t... I>
consteval bool has_more_fields(std::index_sequence<I...>) {
  return requires { T{FieldAt<I>{}..., {}}; };
}

// Where the values I... of T are followed by one for an array, of which each element was counted.
template <class T, std::size_t... I, std::size_t... J>
consteval bool is_array_at(std::index_sequence<I...>, std::index_sequence<J...>) {
  return requires { T{FieldAt<I>{}..., {AnyField{}, AnyField{}}}; } &&
         !requires { T{FieldAt<I>{}..., {AnyField{}, AnyField{}}, FieldAt<J>{}...}; };
}
template <class T, std::size_t... I>
consteval bool has_arrays(std::index_sequence<I...>) {
  return (is_array_at<T>(std::make_index_sequence<I>{},
                         std::make_index_sequence<sizeof...(I) - 1 - I>{}) ||
          ...);
}

/// The members of `P` can be listed: an aggregate of at most 20, without bases, whose members are
/// no arrays of C and can be made of one value each.
template <class P>
consteval bool has_fields() {
  if constexpr (!std::is_aggregate_v<P> || !std::is_class_v<P> || requires { P{AnyBase<P>{}}; }) {
    return false;
  } else {
    constexpr std::size_t size = count_fields<P>();
    if constexpr (size > most_fields || has_more_fields<P>(std::make_index_sequence<size>{})) {
      return false;
    } else {
      return !has_arrays<P>(std::make_index_sequence<size>{});
    }
  }
}

/// Calls `f(name, value)` for every member of `value`, in the order of declaration.
template <class T, class F>
void for_each_field(T&& value, F&& f) {
  with_fields(value, [&f](auto&... members) {
    [[maybe_unused]] std::size_t i = 0;
    (f(field_names<std::remove_cvref_t<T>>[i++], members), ...);
  });
}

// `Member` is the type of what `T` holds while it runs.
template <class T, class Member>
inline constexpr bool is_run = false;
template <HoldsRun T, class Member>
inline constexpr bool is_run<T, Member> = std::is_same_v<Member, typename T::Run>;

/// Calls `f(name, value)` for every member of `value` but what it holds while it runs: for its
/// options.
template <class T, class F>
void for_each_option(T&& value, F&& f) {
  for_each_field(value, [&f]<class Member>(std::string_view name, Member& member) {
    if constexpr (!is_run<std::remove_cvref_t<T>, std::remove_const_t<Member>>) {
      f(name, member);
    }
  });
}

}  // namespace tutti::detail
