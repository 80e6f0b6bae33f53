// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/core/detail/constants.hpp>
#include <tutti/core/detail/fields.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/loggers/summary.hpp>
#include <tutti/trainer.hpp>

namespace tutti {

namespace detail {

// Writes a value as a user would; false for what has no short text (tensors, streams, containers).
template <class T>
bool write_value(std::ostream& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    out << '"' << std::string_view(value) << '"';
  } else if constexpr (std::is_arithmetic_v<T>) {
    out << value;
  } else if constexpr (requires { std::string_view(to_string(value)); }) {
    out << to_string(value);
  } else if constexpr (requires { enumerator_name(value); }) {
    const std::string_view name = enumerator_name(value);
    out << name;
    return !name.empty();
  } else if constexpr (requires { value.set_; }) {
    return value ? write_value(out, *value) : (out << "not set", true);
  } else {
    return false;
  }
  return true;
}

// name: what the recipe calls it, where it stands in a Switch or has a name of its own.
template <class P>
void write_policy(std::ostream& out, const P& policy, std::string_view name) {
  if constexpr (is_switch<P>) {
    if (policy.on) {
      write_policy(out, policy.policy, name);
    }
  } else if constexpr (has_fields<P>()) {
    std::ostringstream line;
    for_each_option(policy, [&](std::string_view field, const auto& value) {
      std::ostringstream text;
      if (write_value(text, value)) {
        line << (line.tellp() > 0 ? ", " : "") << field << " = " << text.str();
      }
    });
    if (line.tellp() > 0) {
      out << "  " << name << ": " << line.str() << "\n";
    }
  }
}

}  // namespace detail

/// A trainer in eight lines, as a progress bar begins with them: see run_summary().
///
/// width: columns, to which longer lines are folded; 0: no limit.
template <class... Policies>
std::string summary(const Trainer<Policies...>& trainer, int width = 0) {
  return run_summary(trainer.state(), trainer.hyperparameters(), width);
}

/// A trainer in words: its recipe's plan (Recipe::describe()), what is fused, whether its steps can
/// be CUDA graphs, every policy with the values of its members, and what was logged as constants of
/// the run while it was constructed, which includes what surgery has done to the model.
template <class... Policies>
std::string explain(const Trainer<Policies...>& trainer) {
  std::ostringstream out;
  out << Trainer<Policies...>::recipe::describe();
  using Engine = detail::EngineFor<Policies...>;
  if constexpr (requires { Engine::describe_fused(); }) {
    out << Engine::describe_fused();
  }
  using Graphs = GraphPlan<typename Engine::recipe>;
  out << "cuda graphs:\n  "
      << (Graphs::possible ? "from forward to backward" : "none, since " + Graphs::why_not())
      << "\n";
  out << "values:\n";
  detail::Constants written;
  trainer.for_each_policy([&]<class P>(const P& policy) {
    detail::write_policy(out, policy, name_of<P>());
    detail::add_constants(written, std::string(name_of<P>()) + "/", detail::unswitched(policy));
  });
  out << "run:\n";
  for (const auto& constant : trainer.hyperparameters()) {
    const std::string& name = constant.first;
    if (std::any_of(written.begin(), written.end(),
                    [&](const auto& member) { return member.first == name; })) {
      continue;
    }
    out << "  " << name << ": ";
    constant.second.visit([&](const auto& v) { detail::write_value(out, v); });
    out << "\n";
  }
  return out.str();
}

}  // namespace tutti
