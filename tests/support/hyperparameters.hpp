// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <variant>

#include <tutti/core/logger.hpp>
#include <tutti/core/state.hpp>

/// Receives the whole numbers that a policy logs as hyperparameters.
struct Hyperparameters {
  using Counts = std::map<std::string, std::int64_t>;

  explicit Hyperparameters(tutti::State& state) { state.logger.add(*this); }

  void log_hyperparameters(std::span<const tutti::Hyperparameter> values) {
    for (const auto& value : values) {
      counts[std::string(value.name)] = *value.value.get_if<std::int64_t>();
    }
  }

  Counts counts;
};
