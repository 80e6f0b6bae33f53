// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/checkpoint/ignore.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/rank_state.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_state.hpp>
#include <tutti/train/saving.hpp>

namespace tutti::train {

/// What a checkpoint holds.
struct SaveOptions {
  bool weights_only = false;
  bool metrics = false;                    ///< the metrics' counts and last values, too
  std::vector<std::string> ignore_keys{};  ///< what is left out, see checkpoint::IgnoreKeys
  bool warn_unmatched = false;             ///< of those that match nothing
};

/// What load_checkpoint() takes.
struct LoadOptions {
  bool weights_only = false;
  bool strict = true;                      ///< weights must agree in names and shapes
  std::vector<std::string> ignore_keys{};  ///< what is left out, see checkpoint::IgnoreKeys
};

namespace detail {

// Names of weights that the program brings, not the checkpoint, by what policies say.
std::vector<std::string> kept_elsewhere(const PolicyStates& policies, const State& state);

// Those of them that the checkpoint has left to the program. Throws c10::Error when the program has
// others than the one that wrote it.
std::vector<std::string> left_to_program(const PolicyStates& policies, const State& state,
                                         const checkpoint::Snapshot& snapshot);

// Removes what the globs match. The tree's paths are "state/model/...", "state/...", "rng/...".
void leave_out(checkpoint::IgnoreKeys& keys, checkpoint::Snapshot& snapshot,
               std::vector<std::string>& left_out);

// Says what to do about weights that differ, and names the policies of the saved recipe that may be
// why. left_out: full paths that are not in the snapshot any more.
checkpoint::LoadReport load_weights(const PolicyStates& policies, State& state,
                                    const checkpoint::Snapshot& snapshot,
                                    const LoadOptions& options,
                                    const std::vector<std::string>& left_out);

// The error of any rank is thrown on all of them, so that none waits for another.
template <class F>
void on_every_rank(dist::Communicator& world, F&& work) {
  std::string error;
  std::exception_ptr own;
  try {
    work();
  } catch (const std::exception& caught) {
    error = text_of(caught);
    own = std::current_exception();
  }
  const std::vector<std::string> errors = world.all_gather_bytes(error);
  if (own) {
    std::rethrow_exception(own);
  }
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    TUTTI_CHECK(errors[rank].empty(), "rank ", rank, ": ", errors[rank]);
  }
}

}  // namespace detail

/// The whole run as a checkpoint keeps it; a collective. Tensors are shared with the run.
///
/// saver: the options' own, whose list the checkpoint keeps; null: none.
checkpoint::Snapshot collect(const PolicyStates& policies, const State& state, const Run& run,
                             const checkpoint::Saver* saver, const SaveOptions& options);

/// Puts the run where a checkpoint left it: weights, optimizers, schedule, policies, time, random
/// streams. The generators of LibTorch are set just before the next training batch.
///
/// saver: the options' own, which takes its list back; null: none.
/// Returns what was taken and what not. Throws c10::Error on every rank when the checkpoint is
/// damaged or does not fit, saying what differs.
RunLoadReport load_checkpoint(const std::string& path, const PolicyStates& policies, State& state,
                              Run& run, checkpoint::Saver* saver, const LoadOptions& options);

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train::detail {

TUTTI_INLINE void save_policies(const PolicyStates& policies, Archive& archive) {
  for (const PolicyState& policy : policies) {
    if (policy.save != nullptr) {
      TUTTI_CHECK(!archive.contains(policy.name),
                  "checkpoint: two policies of the recipe are called \"", policy.name,
                  "\"; give one of them a `name` of its own");
      policy.save(policy.policy, archive.child(policy.name));
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

TUTTI_INLINE void load_policies(const PolicyStates& policies, const Archive& archive,
                                RunLoadReport& report) {
  std::vector<std::string> left = archive.names();
  for (const PolicyState& policy : policies) {
    if (policy.load == nullptr) {
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
    TUTTI_CHECK(names.empty() || state.rank != 0 ||
                    checkpoint::checksum(*state.model, names) ==
                        snapshot.meta.get<std::string>("kept_elsewhere"),
                "the checkpoint leaves ", names.size(), " frozen weights to the program, such as '",
                names.front(),
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

TUTTI_INLINE checkpoint::LoadReport load_weights(const PolicyStates& policies, State& state,
                                                 const checkpoint::Snapshot& snapshot,
                                                 const LoadOptions& options,
                                                 const std::vector<std::string>& left_out) {
  std::vector<std::string> ignore = options.ignore_keys;
  if (std::find(left_out.begin(), left_out.end(), "state/model") != left_out.end()) {
    ignore.emplace_back("state/model/*");
  }
  const std::vector<std::string> own = left_to_program(policies, state, snapshot);
  for (const std::string& name : own) {
    ignore.push_back("state/model/" + name);
  }
  try {
    checkpoint::LoadReport report = checkpoint::load_module(
        *state.model, snapshot.model,
        {.strict = options.strict, .ignore = std::move(ignore), .ignore_prefix = "state/model/"});
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

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE checkpoint::Snapshot collect(const PolicyStates& policies, const State& state,
                                          const Run& run, const checkpoint::Saver* saver,
                                          const SaveOptions& options) {
  checkpoint::Snapshot snapshot;
  snapshot.meta.put("run_name", state.run_name);
  snapshot.meta.put("world_size", std::int64_t{state.world_size});
  snapshot.meta.put("precision", std::string(to_string(state.precision)));
  snapshot.meta.put("epoch", state.timestamp.epoch);
  snapshot.meta.put("batch", state.timestamp.batch);
  snapshot.meta.put("device_train_microbatch_size", state.device_train_microbatch_size);
  snapshot.meta.put("weights_only", options.weights_only);
  snapshot.meta.put("policies", detail::policy_names(policies));
  checkpoint::save_module(*state.model, snapshot.model);
  if (const auto names = detail::kept_elsewhere(policies, state); !names.empty()) {
    snapshot.meta.put("kept_elsewhere", checkpoint::checksum(*state.model, names));
    for (const std::string& name : names) {
      snapshot.model.erase(name);
    }
  }
  if (!options.weights_only) {
    save_run(state, run, saver, snapshot.state, options.metrics);
    detail::save_policies(policies, snapshot.state.child("policies"));
    save_rank_states(policies, *state.communicator, snapshot.state.child("rng"));
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
  detail::on_every_rank(*state.communicator, [&] {
    snapshot = checkpoint::read_snapshot(path, {.state = !options.weights_only});
    TUTTI_CHECK(options.weights_only || !snapshot.meta.get_or("weights_only", false),
                "the checkpoint ", path,
                " holds weights only; set load_weights_only to start from them");
    detail::leave_out(keys, snapshot, report.ignored);
    if (state.rank == 0) {
      checkpoint::warn_unmatched(keys, "load_ignore_keys");  // before it is why weights do not fit
    }
    if (snapshot.state.contains("policies")) {
      detail::prepare_policies(policies, state, snapshot.state.child("policies"));
    }
    report.model = detail::load_weights(policies, state, snapshot, options, report.ignored);
    detail::add_own_weights(report);
    if (!options.weights_only) {
      load_run(state, run, saver, snapshot.state, report);
      detail::load_policies(
          policies,
          snapshot.state.contains("policies") ? snapshot.state.child("policies") : Archive(),
          report);
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

#endif
