// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/early_stopper.hpp>

namespace tutti {

TUTTI_INLINE void EarlyStopper::close(const State&) const {
  if (run.ended && !run.best) {
    detail::warn_of_unseen_set(name, dataloader_label);
  }
}

TUTTI_INLINE void EarlyStopper::save(Archive& archive) const {
  if (run.best) {
    archive.put("best", *run.best);
    archive.put("best_epoch", run.best_epoch);
    archive.put("best_batch", run.best_batch);
  }
}

TUTTI_INLINE void EarlyStopper::load(const Archive& archive) {
  run.best = {};
  if (archive.contains("best")) {
    run.best = archive.get<double>("best");
    run.best_epoch = archive.get<std::int64_t>("best_epoch");
    run.best_batch = archive.get<std::int64_t>("best_batch");
  }
}

TUTTI_INLINE void EarlyStopper::look(State& state) {
  const double value = detail::monitored(state, name, dataloader_label, monitor);
  if (!run.best || (std::isnan(*run.best) && !std::isnan(value)) ||
      (detail::is_better(comparison, monitor, value, *run.best) &&
       std::abs(value - *run.best) > min_delta)) {
    run.best = value;
    run.best_epoch = state.timestamp.epoch;
    run.best_batch = state.timestamp.batch;
    return;
  }
  const std::int64_t waited = patience.unit() == TimeUnit::epoch
                                  ? state.timestamp.epoch - run.best_epoch
                                  : state.timestamp.batch - run.best_batch;
  if (waited > patience.count()) {
    state.stop_training();
  }
}

}  // namespace tutti
