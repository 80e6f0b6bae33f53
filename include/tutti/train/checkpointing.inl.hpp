// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/checkpointing.hpp>

namespace tutti::train::detail {

// What loggers keep is in a place of its own: nothing is amiss when it is not wanted, or not there.
TUTTI_INLINE void save_policies(const PolicyStates& policies, const State& state, Archive& run,
                                checkpoint::PartPlaces* parts) {
  run.child("policies");  // there is one, empty or not
  for (const PolicyState& policy : policies) {
    if (policy.save != nullptr) {
      Archive& archive = run.child(policy.logs ? "loggers" : "policies");
      TUTTI_CHECK(!archive.contains(policy.name),
                  "checkpoint: two policies of the recipe are called \"", policy.name,
                  "\"; give one of them a `name` of its own");
      Archive& own = archive.child(policy.name);
      policy.save(policy.policy, own);
      if (!policy.parts.empty() && state.sharding != nullptr && !state.sharding->keeps_whole()) {
        save_policy_parts(state, own.child(policy.parts), parts);
      }
    }
  }
}

// Policies that changed shapes while they ran do it again, before weights are read.
TUTTI_INLINE void prepare_policies(const PolicyStates& policies, State& state,
                                   const Archive& archive) {
  for (const PolicyState& policy : policies) {
    if (policy.prepare_load != nullptr && archive.contains(policy.name)) {
      policy.prepare_load(policy.policy, archive.child(policy.name), state);
    }
  }
}

TUTTI_INLINE void load_policies(const PolicyStates& policies, const Archive& run,
                                RunLoadReport& report) {
  const Archive none;
  const Archive& archive = run.contains("policies") ? run.child("policies") : none;
  std::vector<std::string> left = archive.names();
  for (const PolicyState& policy : policies) {
    if (policy.load == nullptr) {
      continue;
    }
    if (policy.logs) {
      const std::string place = "loggers/" + std::string(policy.name);
      if (run.contains(place)) {
        policy.load(policy.policy, run.child(place));
      }
      continue;
    }
    const bool there = archive.contains(policy.name);
    (there ? report.restored : report.afresh).push_back("policies/" + std::string(policy.name));
    if (there) {
      policy.load(policy.policy, archive.child(policy.name));
      std::erase(left, policy.name);
    }
  }
  for (const std::string& name : left) {
    report.unused.push_back("policies/" + name);
  }
}

TUTTI_INLINE std::vector<std::string> policy_names(const PolicyStates& policies) {
  std::vector<std::string> out;
  for (const PolicyState& policy : policies) {
    out.emplace_back(policy.name);
  }
  return out;
}

TUTTI_INLINE std::vector<std::string> required_on_load(const PolicyStates& policies) {
  std::vector<std::string> out;
  for (const PolicyState& policy : policies) {
    if (policy.required_on_load) {
      out.emplace_back(policy.name);
    }
  }
  return out;
}

// Says what has changed the model whose weights were loaded and does not change this one.
TUTTI_INLINE void note_lacking(const PolicyStates& policies, const Archive& meta,
                               RunLoadReport& report) {
  const std::vector<std::string> own = required_on_load(policies);
  std::string lacking;
  for (const auto& name : meta.get_or("required_on_load", std::vector<std::string>())) {
    if (std::find(own.begin(), own.end(), name) == own.end()) {
      lacking += (lacking.empty() ? "" : ", ") + name;
    }
  }
  if (!lacking.empty() && !report.model.loaded.empty()) {
    report.notes.push_back("the checkpoint's model was changed by " + lacking +
                           ", which this recipe lacks: with the same weights it may compute "
                           "something else; put what is missing into the recipe");
  }
}

TUTTI_INLINE std::vector<std::string> kept_elsewhere(const PolicyStates& policies,
                                                     const State& state) {
  std::vector<std::string> out;
  for (const PolicyState& policy : policies) {
    if (policy.kept_elsewhere != nullptr) {
      for (std::string& name : policy.kept_elsewhere(policy.policy, state)) {
        if (std::find(out.begin(), out.end(), name) == out.end()) {
          out.push_back(std::move(name));
        }
      }
    }
  }
  return out;
}

TUTTI_INLINE std::vector<std::string> left_to_program(const PolicyStates& policies,
                                                      const State& state,
                                                      const checkpoint::Snapshot& snapshot) {
  std::vector<std::string> names;
  if (snapshot.meta.contains("kept_elsewhere")) {
    names = kept_elsewhere(policies, state);
    // The other ranks get rank 0's weights when the model is wrapped.
    const bool same = names.empty() || state.rank != 0 ||
                      checkpoint::checksum(*state.model, names) ==
                          snapshot.meta.get<std::string>("kept_elsewhere");
    std::string more;
    if (!same) {
      const auto parameters = state.model->named_parameters();
      const auto buffers = state.model->named_buffers();
      snapshot.model.each_leaf([&](const std::string& name, const ArchiveLeaf&) {
        const bool is_known = parameters.contains(name) || buffers.contains(name);
        more = is_known || !more.empty() ? more : name;
      });
    }
    TUTTI_CHECK(same || more.empty(), "the checkpoint has '", more,
                "', which the model of this program has not; choose the layers that have adapters "
                "as the program that wrote it did, by LoRA's target_modules");
    TUTTI_CHECK(same, "the checkpoint leaves ", names.size(),
                " frozen weights to the program, such as '", names.front(),
                "', and this program has others than the one that wrote it; give "
                "the model the same weights before, or write checkpoints that hold them, with "
                "LoRA{.save_base = true}");
    std::erase_if(names, [&](const std::string& name) { return snapshot.model.contains(name); });
  }
  return names;
}

TUTTI_INLINE void leave_out(checkpoint::IgnoreKeys& keys, checkpoint::Snapshot& snapshot,
                            std::vector<std::string>& left_out) {
  if (keys.empty()) {
    return;
  }
  Archive rng;
  if (snapshot.state.contains("rng")) {
    rng.put("rng", snapshot.state.child("rng"));
    snapshot.state.erase("rng");
  }
  const bool all = keys.matches("state");
  const bool weights = keys.matches("state/model") || all;
  if (weights) {
    left_out.emplace_back("state/model");
  }
  snapshot.model = weights ? Archive() : keys.without(snapshot.model, "state/model/", left_out);
  snapshot.state = all ? Archive() : keys.without(snapshot.state, "state/", left_out);
  const Archive streams = keys.without(rng, "", left_out);
  if (streams.contains("rng")) {
    snapshot.state.put("rng", streams.child("rng"));
  }
}

TUTTI_INLINE checkpoint::LoadReport match_weights(const PolicyStates& policies, State& state,
                                                  const checkpoint::Snapshot& snapshot,
                                                  const LoadOptions& options,
                                                  const std::vector<std::string>& left_out,
                                                  Copies& copies) {
  std::vector<std::string> ignore = options.ignore_keys;
  if (std::find(left_out.begin(), left_out.end(), "state/model") != left_out.end()) {
    ignore.emplace_back("state/model/*");
  }
  const std::vector<std::string> own = left_to_program(policies, state, snapshot);
  for (const std::string& name : own) {
    ignore.push_back("state/model/" + name);
  }
  checkpoint::ModuleLoadOptions how{.strict = options.strict,
                                    .convert_dtype = options.weights_only || !options.strict,
                                    .ignore = std::move(ignore),
                                    .ignore_prefix = "state/model/"};
  if (state.spread != nullptr) {
    how.sizes_in_file = [&](const at::Tensor& tensor) {
      const auto* const one = state.spread->find(tensor);
      return one != nullptr ? at::IntArrayRef(one->sizes) : tensor.sizes();
    };
  }
  try {
    checkpoint::LoadReport report =
        checkpoint::match_module(*state.model, snapshot.model, how, copies);
    std::erase_if(report.ignored, [&](const std::string& name) {
      return std::find(own.begin(), own.end(), name) != own.end();
    });
    return report;
  } catch (const c10::Error& error) {
    std::string lacking;
    const std::vector<std::string> recipe = policy_names(policies);
    for (const auto& name : snapshot.meta.get_or("policies", std::vector<std::string>())) {
      if (std::find(recipe.begin(), recipe.end(), name) == recipe.end()) {
        lacking += (lacking.empty() ? "" : ", ") + name;
      }
    }
    if (!lacking.empty()) {
      lacking = "\nThe checkpoint's recipe had policies that this one lacks: " + lacking + ".";
    }
    TUTTI_CHECK(false, error.what_without_backtrace(),
                "\nIn TrainerOptions: load_strict_model_weights = false, or load_ignore_keys = "
                "{\"state/model/fc.*\"} for a head that is called fc.",
                lacking);
    throw;  // not reached
  }
}

// Lists what the keys have left out of the model, where the checkpoint has nothing of that name,
// either.
TUTTI_INLINE void add_own_weights(RunLoadReport& report) {
  const std::vector<std::string> there = report.ignored;
  const auto has = [&](const std::string& path) {
    return std::find(there.begin(), there.end(), path) != there.end();
  };
  for (const std::string& name : report.model.ignored) {
    const std::string path = "state/model/" + name;
    if (!has("state/model") && !has(path)) {
      report.ignored.push_back(path);
    }
  }
}

TUTTI_INLINE Copies room_for_parts(const PolicyStates& policies, Archive& state) {
  Copies out;
  for (const PolicyState& policy : policies) {
    const std::string path = c10::str("policies/", policy.name, '/', policy.parts);
    if (policy.parts.empty() || !state.contains(path)) {
      continue;
    }
    const Archive saved = state.child(path);
    state.erase(path);
    checkpoint::detail::copy_tree(
        saved, "", state.child(path), [&](const std::string&, const at::Tensor& placeholder) {
          out.emplace_back(at::empty(placeholder.sizes(), placeholder.options().device(at::kCPU)),
                           placeholder);
          return out.back().first;
        });
  }
  return out;
}

TUTTI_INLINE at::Tensor read_part(const checkpoint::ShardedSource& source,
                                  const at::Tensor& placeholder, const dist::SpreadModel& model,
                                  const dist::SpreadParameter& one, std::int64_t first,
                                  std::int64_t rows) {
  std::vector<std::int64_t> sizes = model.part_sizes(one);
  sizes[0] = rows;
  const at::Tensor out = at::empty(sizes, at::TensorOptions(placeholder.scalar_type()));
  for (const checkpoint::PartPlace& place : places_of_rows(model, one, first, rows)) {
    source.read_into(placeholder, {place.offsets, place.own->sizes},
                     checkpoint::detail::narrowed(out, *place.own));
  }
  return out;
}

// Reads rows of what a placeholder stands for, when they have memory.
TUTTI_INLINE tutti::detail::InitTape::Reader reader_of(
    std::shared_ptr<const checkpoint::ShardedSource> source, const at::Tensor& placeholder) {
  return [source = std::move(source), placeholder](std::int64_t first, const at::Tensor& rows) {
    checkpoint::TensorBox box = checkpoint::whole_box(placeholder.sizes().vec());
    if (rows.sizes() != placeholder.sizes()) {
      box.offsets[0] = first;
      box.sizes[0] = rows.size(0);
    }
    source->read_into(placeholder, box, rows);
  };
}

TUTTI_INLINE void SharedReading::read(const Copies& copies) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [own, placeholder] : copies) {
    const std::string what = c10::str(own.scalar_type(), ' ', placeholder.sizes(), '\n');
    read_.update(what.data(), what.size());
    const auto* const one = spread_ != nullptr ? spread_->find(own) : nullptr;
    const dist::Communicator& group = one != nullptr ? *spread_->data_group() : world_;
    const bool cut = is_cut(own, group);
    if (one == nullptr) {
      if (const auto tape = tutti::detail::InitTape::of(own)) {
        tape->fill(own, reader_of(source_, placeholder));
      } else if (cut) {
        rows_.emplace_back(own, source_->read_rows(placeholder, group.rank(), group.size()));
      } else {
        own.copy_(source_->read(placeholder));
      }
      continue;
    }
    const checkpoint::TensorBox box =
        checkpoint::shard_box(own.sizes().vec(), cut ? group.rank() : 0, cut ? group.size() : 1);
    const at::Tensor rows =
        read_part(*source_, placeholder, *spread_, *one, box.offsets[0], box.sizes[0]);
    if (cut) {
      rows_of_part_.emplace_back(own, rows);
    } else {
      own.copy_(rows);
    }
  }
}

TUTTI_INLINE void SharedReading::exchange() {
  agree();
  exchange(rows_, world_);
  rows_.clear();
  if (spread_ != nullptr) {
    exchange(rows_of_part_, *spread_->data_group());
    rows_of_part_.clear();
  }
}

TUTTI_INLINE void SharedReading::agree() {
  const std::vector<std::string> all = world_.all_gather_bytes(read_.text());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    TUTTI_CHECK(all[rank] == all.front(), "rank ", rank,
                " takes other weights from the checkpoint than rank 0; build the same model on "
                "every rank, and give all the same load_ignore_keys");
  }
}

TUTTI_INLINE void SharedReading::exchange(const Copies& all_rows, dist::Communicator& group) const {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [own, rows] : all_rows) {
    const std::int64_t row = own.numel() / own.size(0);
    const std::int64_t chunk = (own.size(0) + group.size() - 1) / group.size() * row;
    const auto options =
        own.options().requires_grad(false).device(own.is_cpu() ? device_ : own.device());
    const at::Tensor mine = at::zeros({chunk}, options);
    mine.narrow(0, 0, rows.numel()).copy_(rows.reshape({-1}));
    const at::Tensor whole = at::empty({chunk * group.size()}, options);
    group.all_gather_into(whole, mine);
    own.copy_(whole.narrow(0, 0, own.numel()).view(own.sizes()));
  }
}

// The state with this rank's parts in place of the placeholders of the optimizers' states. shards:
// so many ranks share those of one copy of the model; 0: each has them all.
TUTTI_INLINE Archive filled(const checkpoint::ShardedSource& source, const Archive& placeholders,
                            const State& state, int shards) {
  if (shards == 0 && state.spread == nullptr) {
    return source.filled(placeholders);
  }
  const int rank = shards > 0 ? dist::data_rank(state) % shards : 0;
  std::unordered_map<std::string, const dist::SpreadParameter*> spread;
  if (state.spread != nullptr) {
    for (const auto& item : state.model->named_parameters()) {
      spread.try_emplace(item.key(), state.spread->find(item.value()));
    }
  }
  return source.filled(placeholders, [&](const std::string& name, const at::Tensor& saved) {
    const auto found = spread.find(name);
    const auto* const one = found != spread.end() ? found->second : nullptr;
    if (one != nullptr && saved.sizes() == at::IntArrayRef(one->sizes)) {
      const checkpoint::TensorBox box =
          checkpoint::shard_box(state.spread->part_sizes(*one), rank, std::max(shards, 1));
      return read_part(source, saved, *state.spread, *one, box.offsets[0], box.sizes[0]);
    }
    return shards > 0 ? source.read_rows(saved, rank, shards) : source.read(saved);
  });
}

// Whether the checkpoint is sharded, on which the ranks have to agree before they read on.
TUTTI_INLINE bool agree_on_layout(const std::string& path, dist::Communicator& world) {
  std::string mine;
  on_every_rank(world, [&] {
    const auto manifest = checkpoint::detail::read_manifest(checkpoint::resolve(path));
    mine =
        (manifest.sharded.is_null() ? "a whole one of " : "a sharded one of ") + manifest.created;
    if (!manifest.sharded.is_null()) {
      tutti::detail::Xxh64 hash;
      const std::string text = checkpoint::to_text(manifest);
      hash.update(text.data(), text.size());
      mine += ", " + hash.text();
    }
  });
  const std::vector<std::string> all = world.all_gather_bytes(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const bool same = all[rank] == all.front() ||
                      (all[rank].starts_with("a whole") && all.front().starts_with("a whole"));
    TUTTI_CHECK(same, "the ranks have loaded different checkpoints from ", path, "; rank ", rank,
                " has found ", all[rank], ", rank 0 ", all.front());
  }
  return mine.starts_with("a sharded");
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE checkpoint::Snapshot collect(const PolicyStates& policies, const State& state,
                                          const Run& run, const checkpoint::Saver* saver,
                                          const SaveOptions& options,
                                          checkpoint::PartPlaces* parts) {
  checkpoint::Snapshot snapshot;
  snapshot.meta.put("run_name", state.run_name);
  snapshot.meta.put("world_size", std::int64_t{state.world_size});
  snapshot.meta.put("precision", std::string(to_string(state.precision)));
  snapshot.meta.put("epoch", state.timestamp.epoch);
  snapshot.meta.put("batch", state.timestamp.batch);
  snapshot.meta.put("device_train_microbatch_size", state.device_train_microbatch_size);
  snapshot.meta.put("weights_only", options.weights_only);
  snapshot.meta.put("policies", detail::policy_names(policies));
  if (auto names = detail::required_on_load(policies); !names.empty()) {
    snapshot.meta.put("required_on_load", std::move(names));
  }
  if (parts != nullptr) {
    save_model_parts(state, snapshot.model, *parts);
  } else {
    checkpoint::save_module(*state.model, snapshot.model);
  }
  if (const auto names = detail::kept_elsewhere(policies, state); !names.empty()) {
    snapshot.meta.put("kept_elsewhere", checkpoint::checksum(*state.model, names));
    for (const std::string& name : names) {
      snapshot.model.erase(name);
    }
  }
  if (!options.weights_only) {
    save_run(state, run, saver, snapshot.state, options.metrics, parts);
    detail::save_policies(policies, state, snapshot.state, parts);
    if (parts == nullptr) {
      save_rank_states(policies, *dist::data_group(state), snapshot.state.child("rng"));
    } else if (state.spread == nullptr || state.spread->tensor_group()->rank() == 0) {
      save_rank_state(policies,
                      snapshot.state.child("rng").child(std::to_string(dist::data_rank(state))));
    }
  }
  checkpoint::IgnoreKeys keys(options.ignore_keys);
  std::vector<std::string> left_out;
  detail::leave_out(keys, snapshot, left_out);
  if (state.rank == 0 && options.warn_unmatched) {
    checkpoint::warn_unmatched(keys, "save_ignore_keys");
  }
  return snapshot;
}

TUTTI_INLINE RunLoadReport load_checkpoint(const std::string& path, const PolicyStates& policies,
                                           State& state, Run& run, checkpoint::Saver* saver,
                                           const LoadOptions& options) {
  RunLoadReport report;
  report.path = path;
  report.weights_only = options.weights_only;
  checkpoint::IgnoreKeys keys(options.ignore_keys);
  checkpoint::Snapshot snapshot;
  std::shared_ptr<checkpoint::ShardedSource> source;  // of a sharded one
  std::optional<detail::SharedReading> weights;
  const bool sharded = detail::agree_on_layout(path, *state.communicator);
  std::unique_ptr<dist::Summoned> whole;  // of a sharded one each rank reads its part
  if (!sharded && state.spread != nullptr) {
    whole = state.spread->summon(/*write_back=*/true);
  }
  detail::on_every_rank(*state.communicator, [&] {
    if (sharded) {
      source = std::make_shared<checkpoint::ShardedSource>(path);
      source->checkpoint().verify(state.rank, state.world_size,
                                  options.weights_only ? "model" : "");
      snapshot = source->snapshot(dist::data_rank(state), !options.weights_only);
    } else {
      snapshot = checkpoint::read_snapshot(path, {.state = !options.weights_only});
    }
    TUTTI_CHECK(options.weights_only || !snapshot.meta.get_or("weights_only", false),
                "the checkpoint ", path,
                " holds weights only; set load_weights_only to start from them");
    detail::leave_out(keys, snapshot, report.ignored);
    if (state.rank == 0) {
      checkpoint::warn_unmatched(keys, "load_ignore_keys");  // before it is why weights do not fit
    }
    Copies kept;
    if (source) {
      kept = detail::room_for_parts(policies, snapshot.state);
      snapshot.state = detail::filled(*source, snapshot.state, state, options.shards);
    }
    if (snapshot.state.contains("policies")) {
      detail::prepare_policies(policies, state, snapshot.state.child("policies"));
    }
    Copies copies;
    report.model =
        detail::match_weights(policies, state, snapshot, options, report.ignored, copies);
    if (source) {
      weights.emplace(source, *state.communicator, state.device, state.spread).read(copies);
      weights->read(kept);
    } else {
      const c10::AutoGradMode no_grad(false);
      for (const auto& [own, saved] : copies) {
        tutti::detail::copy_values(own, saved);
      }
    }
    detail::add_own_weights(report);
    detail::note_lacking(policies, snapshot.meta, report);
    whole.reset();  // this rank's part again, as the optimizers have it
  });
  if (weights) {
    weights->exchange();
  }
  detail::on_every_rank(*state.communicator, [&] {
    if (!options.weights_only) {
      load_run(state, run, saver, snapshot.state, report, source != nullptr && options.shards > 0);
      detail::load_policies(policies, snapshot.state, report);
    }
  });
  if (!options.weights_only && snapshot.state.contains("rng")) {
    run.restore_rng = load_rank_state(policies, state, snapshot.state.child("rng"));
    report.restored.emplace_back("rng");
  }
  TUTTI_CHECK(
      state.communicator->all_reduce_value(state.timestamp.batch, dist::ReduceOp::minimum) ==
          state.communicator->all_reduce_value(state.timestamp.batch, dist::ReduceOp::maximum),
      "the ranks have loaded different checkpoints from ", path, "; rank ", state.rank,
      " is at batch ", state.timestamp.batch);
  return report;
}

}  // namespace tutti::train
