// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/reduce_lr_on_plateau.hpp>

namespace tutti {

TUTTI_INLINE void ReduceLROnPlateau::close(const State&) const {
  if (run.ended && !run.seen) {
    detail::warn_of_unseen_set(name, dataloader_label, "reduce the learning rate");
  }
}

TUTTI_INLINE void ReduceLROnPlateau::save(Archive& archive) const {
  if (run.best) {
    archive.put("best", *run.best);
  }
  archive.put("bad", run.bad);
  archive.put("cooldown_left", run.cooldown_left);
}

TUTTI_INLINE void ReduceLROnPlateau::load(const Archive& archive) {
  run.best = {};
  if (archive.contains("best")) {
    run.best = archive.get<double>("best");
  }
  run.bad = archive.get<std::int64_t>("bad");
  run.cooldown_left = archive.get<std::int64_t>("cooldown_left");
}

TUTTI_INLINE bool ReduceLROnPlateau::is_better(double value) const {
  const double sign = detail::is_better(mode, monitor, 0, 1) ? -1 : 1;  // of what is better
  const double from = run.best ? *run.best : -sign * std::numeric_limits<double>::infinity();
  return detail::is_better(mode, monitor, value,
                           threshold_mode == ThresholdMode::relative ? from * (1 + sign * threshold)
                                                                     : from + sign * threshold);
}

TUTTI_INLINE void ReduceLROnPlateau::look(State& state) {
  run.seen = true;
  const double value = detail::monitored(state, name, dataloader_label, monitor);
  if (is_better(value)) {
    run.best = value;
    run.bad = 0;
  } else {
    ++run.bad;
  }
  if (run.cooldown_left > 0) {
    --run.cooldown_left;
    run.bad = 0;
  }
  if (run.bad > patience) {
    reduce(state);
    run.cooldown_left = cooldown;
    run.bad = 0;
  }
}

TUTTI_INLINE void ReduceLROnPlateau::reduce(State& state) const {
  std::size_t i = 0;  // over all optimizers, as initial_lrs are
  std::size_t one = 0;
  for (const auto& optimizer : state.optimizers) {
    const std::string prefix = "lr-" + detail::optimizer_label(state, one++) + "/group";
    auto& groups = optimizer->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g, ++i) {
      auto& options = groups[g].options();
      const bool scheduled = i < state.initial_lrs.size();
      const double was = scheduled ? state.initial_lrs[i] : options.get_lr();
      const double is = std::max(was * factor, min_lr);
      if (was - is > eps) {
        const double now = options.get_lr();
        options.set_lr(now == was ? is : now * (is / was));
        if (scheduled) {
          state.initial_lrs[i] = is;
        }
        const std::string key = prefix + std::to_string(g);
        state.log_metrics({{key, options.get_lr()}});
      }
    }
  }
}

}  // namespace tutti
