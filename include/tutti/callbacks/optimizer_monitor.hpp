// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/stack.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/optim/reports_metrics.hpp>

namespace tutti {

/// Logs norms of gradients, weights, moments and updates.
///
/// At BatchEnd, every batch_log_interval batches: `l2_norm/grad/<parameter>` for each parameter
/// with a gradient, and `l2_norm/grad/global`, over all of them. With an optimizer of the Adam
/// family also `l2_norm/moment/<parameter>`, `l2_norm/param/<parameter>` and
/// `l2_norm/update/<parameter>`. Gradients are those that the optimizer has seen: unscaled,
/// clipped, averaged over processes. Waits for the device once in such a batch. Source: MosaicML
/// Composer, `composer.callbacks.OptimizerMonitor`.
struct OptimizerMonitor final {
  bool log_optimizer_metrics = true;     ///< moments, weights and updates besides gradients
  std::int64_t batch_log_interval = 10;  ///< batches from one time to the next; >= 1

  static constexpr std::string_view name = "OptimizerMonitor";
  static constexpr About about{
      .reads_batch = false,
      .no_tensor_parallel = "it reports norms of whole gradients and states",
  };
  using events = types<BatchEnd>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(batch_log_interval >= 1, "OptimizerMonitor: batch_log_interval", batch_log_interval,
           "at least 1 batch");
  }

  bool match(BatchEnd, const State& state) const {
    // Ranks whose logs nobody reads add their parts to the norms of the others.
    return state.timestamp.batch % batch_log_interval == 0 &&
           (state.logger.wants_metrics() || state.sharding != nullptr);
  }
  void apply(BatchEnd, const State& state) const;

 private:
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> metrics_of(
      const State& state, const at::Tensor& parameter, const std::string& parameter_name) const {
    for (const auto& optimizer : state.optimizers) {
      const auto* reports = dynamic_cast<const optim::ReportsMetrics*>(optimizer.get());
      if (log_optimizer_metrics && reports != nullptr) {
        auto metrics = reports->report_per_parameter_metrics(parameter, parameter_name);
        if (!metrics.empty()) {
          return metrics;
        }
      }
    }
    return {};
  }

  // Brings all norms to the host at once.
  static void log(const State& state, const std::vector<std::string>& keys,
                  std::vector<at::Tensor>& norms);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/optimizer_monitor.inl.hpp>
#endif
