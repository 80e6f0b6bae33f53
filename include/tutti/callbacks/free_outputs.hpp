// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>

namespace tutti {

/// Lets go of the model's outputs as soon as the loss is known, which saves their memory during the
/// backward pass where it does not need them.
///
/// At AfterLoss. Training metrics need the outputs later, so a model that has any is refused.
/// Source: MosaicML Composer, `composer.callbacks.FreeOutputs`.
struct FreeOutputs final {
  static constexpr std::string_view name = "FreeOutputs";
  static constexpr About about{.reads_batch = false};
  static constexpr Role role = Role::callback;
  using events = types<FitStart, AfterLoss>;
  static constexpr Rules rules{.graph = {.behind = {id<AfterLoss>}}};

  /// Throws c10::Error when the model has training metrics.
  void apply(FitStart, State& state) const;
  void apply(AfterLoss, State& state) const { state.outputs = {}; }
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void FreeOutputs::apply(FitStart, State& state) const {
  TUTTI_CHECK(state.task.metrics(/*train=*/true).empty(),
              "FreeOutputs: the model has training metrics, which are computed from the outputs "
              "after the backward pass; return none from metrics(true), or take FreeOutputs out "
              "of the recipe");
}

}  // namespace tutti

#endif
