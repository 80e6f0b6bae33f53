// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Adds a value as a user would write it; nothing for what has no short text, such as a tensor, a
/// function or what a policy holds while it runs.
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
                         value.empty();
                         std::string_view(*value.begin());
                         value.end();
                       }) {
    std::string all;
    for (const std::string_view one : value) {
      all.append(all.empty() ? "" : ",").append(one);
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

}  // namespace tutti::detail

#endif
