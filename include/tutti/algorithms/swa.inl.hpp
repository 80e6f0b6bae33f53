// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/swa.hpp>

namespace tutti::functional {

TUTTI_INLINE double swa_learning_rate(double from, double to, std::int64_t updates,
                                      std::int64_t anneal_steps, Anneal strategy) {
  TUTTI_CHECK_VALUE(anneal_steps >= 1, "swa_learning_rate: anneal_steps is ", anneal_steps,
                    ", expected 1 or more");
  const double part =
      std::min(1.0, static_cast<double>(updates) / static_cast<double>(anneal_steps));
  const double share =
      strategy == Anneal::linear ? part : (1 - std::cos(std::numbers::pi * part)) / 2;
  return to * share + from * (1 - share);
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void SWA::apply(BatchStart, State& state) {
  if (static_cast<std::int64_t>(run.recent->size()) >= refresh_batches) {
    run.recent->erase(run.recent->begin());
  }
  run.recent->push_back(state.batch);
}

TUTTI_INLINE void SWA::save(Archive& archive) const {
  archive.put("started", run.started);
  archive.put("completed", run.completed);
  archive.put("elapsed", run.elapsed);
  archive.put("initial_lrs", *run.initial_lrs);
  run.mean->save(archive.child("mean"));
}

TUTTI_INLINE void SWA::load(const Archive& archive) {
  run.started = archive.get<bool>("started");
  run.completed = archive.get<bool>("completed");
  run.elapsed = archive.get<std::int64_t>("elapsed");
  run.initial_lrs = archive.get<std::vector<double>>("initial_lrs");
  run.mean->load(archive.child("mean"));
}

TUTTI_INLINE bool SWA::reached(Time time, const State& state) {
  return time.is_fraction() ? state.progress().elapsed_fraction().value_or(0) >= time.value()
                            : state.timestamp >= time;
}

}  // namespace tutti
