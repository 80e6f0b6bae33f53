// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/load_checkpoint.hpp>

namespace tutti {

TUTTI_INLINE void LoadCheckpoint::validate() const {
  expect(!load_path.empty(),
         "LoadCheckpoint: load_path is empty; set it to a checkpoint's folder.");
  if (is_address()) {
    expect(static_cast<bool>(object_store),
           "LoadCheckpoint: load_path is an address, but object_store is not set; give it the "
           "store, a LocalObjectStore, a CommandObjectStore or one of your own.");
    expect(!checkpoint::object_name(object_store, load_path).empty(), "LoadCheckpoint: load_path",
           load_path, "an address in object_store, " + object_store.get_uri("name"));
  }
}

TUTTI_INLINE void LoadCheckpoint::load_weights(State& state) const {
  const std::string path = run_path(load_path, state);
  if (!object_store) {
    take(state, checkpoint::read_checkpoint(path, {.state = false}), path);
    return;
  }
  dist::Communicator& world = *state.communicator;
  const bool first = world.environment().local_rank == 0;
  const checkpoint::TemporaryCheckpoint here(
      world.broadcast_bytes(checkpoint::TemporaryCheckpoint::new_path()), first);
  const std::string object = is_address() ? checkpoint::object_name(object_store, path) : path;
  checkpoint::Snapshot snapshot;
  const auto read = [&] {
    if (first) {
      checkpoint::download_resolved(object_store, object, here.path());
    }
    snapshot = checkpoint::speaking_of(object_store.get_uri(object), here.path(), [&] {
      return checkpoint::read_checkpoint(here.path(), {.state = false});
    });
  };
  dist::run_local_rank_zero_first_patiently(world, read, here.place());
  take(state, snapshot, path);
}

TUTTI_INLINE void LoadCheckpoint::take(State& state, const checkpoint::Snapshot& snapshot,
                                       const std::string& path) const {
  checkpoint::ModuleLoadOptions options{.strict = strict_model_weights,
                                        .ignore_prefix = "state/model/"};
  for (const Key& key : ignore_keys) {
    options.ignore.emplace_back(std::string_view(key));
  }
  checkpoint::IgnoreKeys keys(options.ignore);
  for (const std::string& weight : snapshot.model.names()) {
    keys.matches(options.ignore_prefix + weight);
  }
  if (state.rank == 0) {
    checkpoint::warn_unmatched(keys, "LoadCheckpoint::ignore_keys");
  }
  checkpoint::LoadReport report;
  const auto whole = state.spread != nullptr ? state.spread->summon(/*write_back=*/true) : nullptr;
  try {
    report = checkpoint::load_module(*state.model, snapshot.model, options);
  } catch (const c10::Error& error) {
    TUTTI_CHECK(false, error.what_without_backtrace(), "\nThey are those of ", path,
                ". In LoadCheckpoint: strict_model_weights = false, or ignore_keys = "
                "{\"state/model/fc.*\"} for a head that is called fc.");
  }
  if (!report.complete()) {
    TORCH_WARN("LoadCheckpoint: the weights of ", path, " were taken in part:", report.text());
  }
}

}  // namespace tutti
