// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/ema.hpp>

namespace tutti {

TUTTI_INLINE bool EMA::due(const State& state) const {
  if (!ema_start.is_fraction()) {
    return state.timestamp >= ema_start;
  }
  return state.progress().elapsed_fraction().value_or(0) >= ema_start.value();
}

TUTTI_INLINE std::vector<std::pair<std::string, at::Tensor>> EMA::side(bool in_model) const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (std::size_t i = 0; i < run.store->size(); ++i) {
    out.emplace_back(run.store->names()[i],
                     in_model ? run.store->weights()[i].detach() : run.store->stored()[i]);
  }
  return out;
}

// Puts the averages into the model, or takes them out; false: they are there, or are not.
TUTTI_INLINE bool EMA::exchange(bool averages_in_use) {
  if (run.averages_in_use == averages_in_use) {
    return false;
  }
  run.store->swap();
  run.averages_in_use = averages_in_use;
  return true;
}

TUTTI_INLINE void EMA::use_averages(State& state, bool yes) {
  if (exchange(yes) && detail::parts_of(state) != nullptr) {
    state.sharding->after_step();  // what is whole all the time has other shards now
  }
}

TUTTI_INLINE void EMA::average(State& state, std::int64_t count) {
  if (!run.started) {
    *run.store = functional::EMAParameters(*state.model, exclude_buffers, detail::parts_of(state));
    run.started = true;
    run.started_at = count;
  } else if (count % interval().count() == 0) {
    run.store->finish_update(factor_at(count), average_integers);
  }
}

TUTTI_INLINE void EMA::save(Archive& archive) const {
  archive.put("started", run.started);
  archive.put("started_at", run.started_at);
  archive.put("averages_in_use", run.averages_in_use);
  Archive& weights = archive.child("weights");
  for (std::size_t i = 0; i < run.store->size(); ++i) {
    weights.put(run.store->names()[i], run.store->stored()[i]);
  }
}

TUTTI_INLINE void EMA::load(const Archive& archive) {
  run.started = archive.get<bool>("started");
  run.started_at = archive.get_or<std::int64_t>("started_at", 0);  // older files lack it
  run.loaded = detail::LoadedAverages{};
  run.loaded->averages_in_use = archive.get<bool>("averages_in_use");
  if (archive.contains("weights")) {
    const Archive& weights = archive.child("weights");
    for (const std::string& key : weights.names()) {
      run.loaded->weights.emplace_back(key, weights.tensor(key));
    }
  }
}

TUTTI_INLINE void EMA::restore(State& state) {
  *run.store = functional::EMAParameters(*state.model, run.loaded->weights, exclude_buffers);
  run.averages_in_use = run.loaded->averages_in_use;
  run.loaded.reset();
  exchange(false);
}

}  // namespace tutti
