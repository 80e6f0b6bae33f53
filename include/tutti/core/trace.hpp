// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/policy.hpp>

namespace tutti {

/// Records what ran, in order: "batch_start" when the event is fired, then "batch_start>MixUp" for
/// every policy that acts on it, and "epoch_checkpoint>save:ep1-ba2" for a checkpoint. Put it into
/// a recipe to test an order as a whole:
///
///     CHECK(trainer.get<Trace>().lines == std::vector<std::string>{"init", ...});
struct Trace final {
  static constexpr std::string_view name = "Trace";
  static constexpr Role role = Role::callback;

  std::vector<std::string> lines;
  bool algorithms_only = true;  ///< callbacks and loggers leave no line

  /// Called by the engine when it fires an event.
  void record_event(std::string_view event) { lines.emplace_back(event); }

  /// Called by the engine when a policy runs at an event.
  void record_policy(std::string_view event, std::string_view policy, Role of) {
    if (of == Role::algorithm || !algorithms_only) {
      lines.emplace_back(event).append(">").append(policy);
    }
  }
};

}  // namespace tutti
