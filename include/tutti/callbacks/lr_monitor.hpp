// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <torch/optim/optimizer.h>

#include <tutti/callbacks/detail/optimizer_label.hpp>
#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>

namespace tutti {

/// Logs the learning rates.
///
/// At BatchEnd, for each group of parameters: `lr-<Optimizer>/group<i>`, for instance
/// `lr-DecoupledSGDW/group0`; of several optimizers with the name of each. The schedule has made
/// its step, so this is the rate of the next batch. Source: MosaicML Composer,
/// `composer.callbacks.LRMonitor`.
struct LRMonitor final {
  static constexpr std::string_view name = "LRMonitor";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
  };
  using events = types<BatchEnd>;

  void apply(BatchEnd, const State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void LRMonitor::apply(BatchEnd, const State& state) const {
  if (!state.logger.wants_metrics()) {
    return;
  }
  std::size_t one = 0;
  for (const auto& optimizer : state.optimizers) {
    const std::string prefix = "lr-" + detail::optimizer_label(state, one++) + "/group";
    const auto& groups = optimizer->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::string key = prefix + std::to_string(i);
      state.log_metrics({{key, groups[i].options().get_lr()}});
    }
  }
}

}  // namespace tutti

#endif
