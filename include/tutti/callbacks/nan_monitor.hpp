// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>

namespace tutti {

/// Stops training with an exception when a loss is not a number.
///
/// At AfterLoss, every microbatch. Infinities pass: under amp_fp16 they are part of finding the
/// scale. Looking at the loss waits for the device once per microbatch.
/// Source: MosaicML Composer, `composer.callbacks.NaNMonitor`.
struct NaNMonitor final {
  static constexpr std::string_view name = "NaNMonitor";
  static constexpr About about{.reads_batch = false};
  using events = types<AfterLoss>;

  /// Throws c10::Error naming the part of the loss, where it has parts, and the batch.
  void apply(AfterLoss, const State& state) const;

 private:
  static std::string culprit(const State& state);
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void NaNMonitor::apply(AfterLoss, const State& state) const {
  at::Tensor any = state.loss.isnan();  // one answer for all parts: the device is asked once
  for (const auto& [part, loss] : state.loss_parts) {
    any = any.logical_or(loss.isnan().any());
  }
  if (any.item<bool>()) {
    TUTTI_CHECK(false, "Train loss ", culprit(state), "contains a NaN (batch ",
                state.timestamp.batch, " of the run, epoch ", state.timestamp.epoch,
                "). Lower the learning rate, clip gradients, or look at this batch.");
  }
}

TUTTI_INLINE std::string NaNMonitor::culprit(const State& state) {
  if (state.loss_parts.size() > 1) {
    for (const auto& [part, loss] : state.loss_parts) {
      if (loss.isnan().any().item<bool>()) {
        return part + " ";
      }
    }
  }
  return "";
}

}  // namespace tutti

#endif
