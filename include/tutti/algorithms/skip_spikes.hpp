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

namespace tutti::functional {

TUTTI_INLINE bool is_spike(std::span<const double> recent, double value, double deviations,
                           double min_rise) {
  if (!std::isfinite(value)) {
    return true;
  }
  if (recent.empty()) {
    return false;
  }
  const auto count = static_cast<double>(recent.size());
  const double mean = std::accumulate(recent.begin(), recent.end(), 0.0) / count;
  double squares = 0;
  for (const double one : recent) {
    squares += (one - mean) * (one - mean);
  }
  return value - mean >
         std::max(deviations * std::sqrt(squares / count), min_rise * std::abs(mean));
}

}  // namespace tutti::functional

namespace tutti {

namespace detail {

// The loss of the batch and the norm of its gradients, alike on all ranks: the mean loss, the
// largest norm.
TUTTI_INLINE std::array<double, 2> loss_and_norm(const State& state, SpikeOf what) {
  std::array<double, 2> out{0, 0};
  if (what != SpikeOf::gradient_norm) {
    out[0] = state.total_loss.at("total").item<double>();
  }
  if (what != SpikeOf::loss) {
    Gradients both;
    each_parameter(state.optimizers, [&](const at::Tensor& parameter) { both.add(parameter); });
    if (!both.gradients.empty()) {
      out[1] = all_on_cpu(both.gradients) ? host_norm(both.gradients)
                                          : device_norm(both.gradients).item<double>();
      if (state.sharding != nullptr) {  // of the parts of all ranks together
        out[1] = std::sqrt(state.sharding->shard_group().all_reduce_value(out[1] * out[1]));
      }
    }
  }
  if (state.world_size > 1) {
    out[0] = state.communicator->all_reduce_value(out[0], dist::ReduceOp::sum) / state.world_size;
    out[1] = state.communicator->all_reduce_value(out[1], dist::ReduceOp::maximum);
  }
  return out;
}

}  // namespace detail

TUTTI_INLINE void SkipSpikes::apply(FitStart, const State& state) const {
  TUTTI_CHECK_VALUE(state.optimizers.size() == 1,
                    "SkipSpikes watches the steps of one optimizer, and the run has ",
                    state.optimizers.size(), "; remove it");
  TUTTI_CHECK_VALUE(!optim::calls_closure(*state.optimizers.front()),
                    "SkipSpikes leaves out a step once its gradients are known, and this optimizer "
                    "computes them inside of its step; remove it, or take another optimizer");
}

TUTTI_INLINE void SkipSpikes::apply(AfterTrainBatch, State& state) {
  const auto [loss, norm] = detail::loss_and_norm(state, monitor);
  if (state.precision == Precision::amp_fp16 && std::isfinite(loss) && !std::isfinite(norm)) {
    return;  // the gradient scaler leaves this one out, and looks for a scale
  }
  const bool of_loss = monitor != SpikeOf::gradient_norm && is_spike(*run.losses, loss);
  const bool of_norm = monitor != SpikeOf::loss && is_spike(*run.norms, norm);
  if (of_loss || of_norm) {
    if (run.skipped == 0 && state.rank == 0) {
      TORCH_WARN("SkipSpikes: the step of batch ", state.timestamp.batch, " of the run, epoch ",
                 state.timestamp.epoch, ", is left out: ", of_loss ? "its loss is " : "",
                 of_loss ? c10::str(loss) : std::string(), of_loss && of_norm ? " and " : "",
                 of_norm ? "the norm of its gradients is " : "",
                 of_norm ? c10::str(norm) : std::string(),
                 "; further ones are logged as skip_spikes/skipped, without a warning");
    }
    state.skip_step = true;
    ++run.skipped;
    ++run.in_a_row;
    return;
  }
  if (monitor != SpikeOf::gradient_norm) {
    remember(*run.losses, loss);
  }
  if (monitor != SpikeOf::loss) {
    remember(*run.norms, norm);
  }
  run.in_a_row = 0;
  run.returned = false;
}

TUTTI_INLINE void SkipSpikes::apply(BatchEnd, State& state) {
  state.log_metrics({{"skip_spikes/skipped", static_cast<double>(run.skipped)}});
  if (reload_after == 0 || run.in_a_row < reload_after) {
    return;
  }
  TUTTI_CHECK(!std::exchange(run.returned, true),
              "SkipSpikes: the run went back to its last checkpoint "
              "and has left out ",
              run.in_a_row,
              " steps since without making one; lower the learning "
              "rate, look at the data, or let more pass (deviations, min_rise)");
  state.go_back = state.timestamp.batch - run.in_a_row;  // when the last step had been made
  run.in_a_row = 0;
}

TUTTI_INLINE void SkipSpikes::save(Archive& archive) const {
  archive.put("skipped", run.skipped);
  archive.put("in_a_row", run.in_a_row);
  archive.put("losses", *run.losses);
  archive.put("norms", *run.norms);
}

TUTTI_INLINE void SkipSpikes::load(const Archive& archive) {
  run.skipped =
      std::max(run.skipped, archive.get<std::int64_t>("skipped"));  // also where it goes back
  run.in_a_row = archive.get<std::int64_t>("in_a_row");
  run.losses = archive.get<std::vector<double>>("losses");
  run.norms = archive.get<std::vector<double>>("norms");
}

}  // namespace tutti

#endif
