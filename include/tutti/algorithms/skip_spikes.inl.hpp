// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/skip_spikes.hpp>

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
