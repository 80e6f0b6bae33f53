// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <tutti/algorithms/detail/gradients.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/optim/closure.hpp>

/// SkipSpikes: no step along gradients of a batch that is far out of line.
namespace tutti {

/// What SkipSpikes looks at.
enum class SpikeOf : std::uint8_t {
  either,         ///< one of the two is enough
  loss,           ///< the batch's loss
  gradient_norm,  ///< the 2-norm over all gradients, before they are clipped
};

/// "either", "loss", "gradient_norm".
constexpr std::string_view to_string(SpikeOf what) {
  return what == SpikeOf::either          ? "either"
         : what == SpikeOf::loss          ? "loss"
         : what == SpikeOf::gradient_norm ? "gradient_norm"
                                          : "unknown";
}

namespace functional {

/// `value` is out of line with the latest ones: it is not finite, or above their mean by more than
/// `deviations` standard deviations and more than `min_rise` times the mean's magnitude.
///
/// recent: the latest values; none: any finite value is in line.
bool is_spike(std::span<const double> recent, double value, double deviations, double min_rise);

}  // namespace functional

/// Leaves out the optimizer's step of a batch whose loss or gradients are far out of line, and
/// takes the weights back from the last checkpoint when that goes on.
///
///     SkipSpikes{.deviations = 6, .reload_after = 10}
///
/// Time, schedules and data go on, as where a gradient scaler skips a step.
/// Source: the remedy of Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022,
/// section 5.1.
struct SkipSpikes final {
  SpikeOf monitor = SpikeOf::either;
  double deviations = 6.0;         ///< standard deviations above the mean that are in line; > 0
  double min_rise = 0.5;           ///< so is what is above the mean by less than this part; >= 0
  std::int64_t window = 100;       ///< latest batches in line that the mean is of; >= 2
  std::int64_t min_values = 20;    ///< so many of them before any finite value counts as a spike
  std::int64_t reload_after = 10;  ///< steps left out in a row before the run goes back to the last
                                   ///< checkpoint from before them; 0: it never does

  /// What it holds while it runs; not an option.
  struct Run {
    std::int64_t skipped = 0;            ///< steps left out so far
    std::int64_t in_a_row = 0;           ///< since the last step that was made
    bool returned = false;               ///< no step was made since it went back
    Lazy<std::vector<double>> losses{};  ///< the latest in line
    Lazy<std::vector<double>> norms{};   ///< the latest in line
  } run{};

  static constexpr std::string_view name = "SkipSpikes";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,  // after the step
      .skips_steps = true,
      .only_watches = {id<BatchEnd>},
      .no_tensor_parallel = "it takes the norm of whole gradients",
  };
  using events = types<FitStart, AfterTrainBatch, BatchEnd>;
  static constexpr Rules rules{
      .runs_before = {{id<clips_gradients>, "a clipped gradient is never out of line"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(deviations > 0, "SkipSpikes: deviations", deviations, "more than 0");
    expect(min_rise >= 0, "SkipSpikes: min_rise", min_rise, "0 or more");
    expect(window >= 2, "SkipSpikes: window", window, "2 or more");
    expect(min_values >= 1 && min_values <= window, "SkipSpikes: min_values", min_values,
           "1 or more, and no more than the window");
    expect(reload_after >= 0, "SkipSpikes: reload_after", reload_after, "0 or more");
  }

  /// Why it cannot train a sharded model; empty when it can.
  [[nodiscard]] constexpr std::string_view why_no_sharding() const {
    return reload_after > 0 ? "it goes back to a checkpoint, which a sharded run loads only at its "
                              "start; set reload_after to 0"
                            : std::string_view();
  }

  bool match(AfterTrainBatch, const State& state) const { return !state.is_ascent; }
  bool match(BatchEnd, const State&) const { return run.in_a_row > 0; }

  /// Refuses an optimizer whose step cannot be left out once its gradients are known.
  void apply(FitStart, const State& state) const;
  /// Looks, and has the step left out.
  void apply(AfterTrainBatch, State& state);
  /// Logs `skip_spikes/skipped` where a step was left out. Throws c10::Error when the run has gone
  /// back and no step could be made since.
  void apply(BatchEnd, State& state);

  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  [[nodiscard]] bool is_spike(const std::vector<double>& recent, double value) const {
    return static_cast<std::int64_t>(recent.size()) < min_values
               ? !std::isfinite(value)
               : functional::is_spike(recent, value, deviations, min_rise);
  }
  void remember(std::vector<double>& recent, double value) const {
    if (static_cast<std::int64_t>(recent.size()) >= window) {
      recent.erase(recent.begin());
    }
    recent.push_back(value);
  }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/skip_spikes.inl.hpp>
#endif
