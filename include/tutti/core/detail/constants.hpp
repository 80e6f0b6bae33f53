// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/fields.hpp>
#include <tutti/core/hyperparameter.hpp>

/// Hyperparameters of anything that is a struct of them, by name and value.
namespace tutti::detail {

/// Constants of a run with their names.
using Constants = std::vector<std::pair<std::string, HyperparameterValue>>;

/// Adds one.
void put_constant(Constants& out, std::string name, HyperparameterValue value);

/// A number as it is read back, with no more digits than that takes.
std::string shortest_text(double value);

/// What a list may have of which the text is logged: numbers, and what has a text of its own.
template <class T>
concept ListedConstant = (std::is_arithmetic_v<T> && !std::same_as<T, bool>) ||
                         requires(const T& value) { std::string_view(value); } ||
                         requires(const T& value) { std::string_view(to_string(value)); };

/// An entry of a list, as text.
template <ListedConstant T>
std::string entry_text(const T& value) {
  if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return shortest_text(static_cast<double>(value));
  } else if constexpr (requires { std::string_view(value); }) {
    return std::string(std::string_view(value));
  } else {
    return std::string(to_string(value));
  }
}

/// Adds a value as a user would write it, a list as its entries with commas between; nothing for
/// what has no short text, such as a tensor, a function or what a policy holds while it runs.
template <class T>
void add_constant(Constants& out, const std::string& name, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    put_constant(out, name, value);
  } else if constexpr (std::is_integral_v<T>) {
    if (static_cast<std::int64_t>(value) >= 0 || std::is_signed_v<T>) {
      put_constant(out, name, static_cast<std::int64_t>(value));
    } else {
      put_constant(out, name, std::to_string(value));
    }
  } else if constexpr (std::is_arithmetic_v<T>) {
    put_constant(out, name, static_cast<double>(value));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    put_constant(out, name, std::string(std::string_view(value)));
  } else if constexpr (requires { std::string_view(to_string(value)); }) {
    put_constant(out, name, std::string(to_string(value)));
  } else if constexpr (requires { enumerator_name(value); }) {
    if (const std::string_view word = enumerator_name(value); !word.empty()) {
      put_constant(out, name, std::string(word));
    }
  } else if constexpr (
      requires {
        static_cast<bool>(value) ? &*value : nullptr;
        value.set_;
      } || requires { value.has_value() ? &*value : nullptr; }) {
    if (value) {
      add_constant(out, name, *value);
    } else {
      put_constant(out, name, "not set");
    }
  } else if constexpr (requires {
                         requires ListedConstant<std::remove_cvref_t<decltype(*value.begin())>>;
                         value.end();
                       }) {
    std::string all;
    for (const auto& one : value) {
      all.append(all.empty() ? "" : ",").append(entry_text(one));
    }
    put_constant(out, name, std::move(all));
  }
}

/// Adds `prefix` + name of every option of `value`; nothing where its members cannot be listed.
template <class T>
void add_constants(Constants& out, const std::string& prefix, const T& value) {
  if constexpr (has_fields<T>()) {
    for_each_option(value, [&](std::string_view field, const auto& member) {
      add_constant(out, prefix + std::string(field), member);
    });
  }
}

}  // namespace tutti::detail

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class std::vector<std::pair<std::string, tutti::HyperparameterValue>>;
#endif

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void put_constant(Constants& out, std::string name, HyperparameterValue value) {
  out.emplace_back(std::move(name), std::move(value));
}

TUTTI_INLINE std::string shortest_text(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

}  // namespace tutti::detail

#endif
