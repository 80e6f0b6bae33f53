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
#include <tutti/train/load_report.hpp>
#include <tutti/train/rank_state.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_state.hpp>

namespace tutti::train {

/// What a checkpoint holds.
struct SaveOptions {
  bool weights_only = false;
  bool metrics = false;                    ///< the metrics' counts and last values, too
  std::vector<std::string> ignore_keys{};  ///< what is left out, see checkpoint::IgnoreKeys
};

/// What load_checkpoint() takes.
struct LoadOptions {
  bool weights_only = false;
  bool strict = true;                      ///< weights must agree in names and shapes
  std::vector<std::string> ignore_keys{};  ///< what is left out, see checkpoint::IgnoreKeys
};

namespace detail {

// Every policy that keeps state, under its name.
template <class Engine, class F>
void each_saving_policy(Engine& engine, F&& f) {
  engine.for_each([&]<class P>(P& policy) {
    if constexpr (requires(Archive & archive, const P& p) { p.save(archive); }) {
      static_assert(
          requires(const Archive& archive) { policy.load(archive); },
          "tutti: this policy has save(Archive&) but no load(const Archive&); write both.");
      f(name_of<P>(), policy);
    }
  });
}

template <class Engine>
void save_policies(Engine& engine, Archive& archive) {
  each_saving_policy(engine, [&](std::string_view name, const auto& policy) {
    TORCH_CHECK(!archive.contains(name), "checkpoint: two policies of the recipe are called \"",
                name, "\"; give one of them a `name` of its own");
    policy.save(archive.child(name));
  });
}

// Policies that changed shapes while they ran do it again, before weights are read.
template <class Engine>
void prepare_policies(Engine& engine, State& state, const Archive& archive) {
  const auto prepare = [&](std::string_view name, auto& policy) {
    if constexpr (requires(const Archive& saved) { policy.prepare_load(saved, state); }) {
      if (archive.contains(name)) {
        policy.prepare_load(archive.child(name), state);
      }
    }
  };
  engine.for_each([&]<class P>(P& policy) {
    prepare(name_of<P>(), policy);
    if constexpr (requires { policy.policy; }) {  // inside a Switch
      prepare(name_of<P>(), policy.policy);
    }
  });
}

template <class Engine>
void load_policies(Engine& engine, const Archive& archive, RunLoadReport& report) {
  std::vector<std::string> left = archive.names();
  each_saving_policy(engine, [&](std::string_view name, auto& policy) {
    const bool there = archive.contains(name);
    (there ? report.restored : report.afresh).push_back("policies/" + std::string(name));
    if (there) {
      policy.load(archive.child(name));
      std::erase(left, name);
    }
  });
  for (const std::string& name : left) {
    report.unused.push_back("policies/" + name);
  }
}

template <class Engine>
std::vector<std::string> policy_names(const Engine& engine) {
  std::vector<std::string> out;
  engine.for_each([&]<class P>(const P&) { out.emplace_back(name_of<P>()); });
  return out;
}

// Removes what the globs match. The tree's paths are "state/model/...", "state/...", "rng/...".
inline void leave_out(checkpoint::IgnoreKeys& keys, checkpoint::Snapshot& snapshot,
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

inline void warn_unmatched(const checkpoint::IgnoreKeys& keys, const char* option) {
  for (const std::string& glob : keys.unmatched()) {
    TORCH_WARN(option, ": nothing in the checkpoint matches \"", glob,
               "\"; paths look like state/model/fc.weight, state/optimizers/0, state/policies/EMA, "
               "rng");
  }
}

// Names the policies of the saved recipe that may be why weights differ.
template <class Engine>
checkpoint::LoadReport load_weights(const Engine& engine, State& state,
                                    const checkpoint::Snapshot& snapshot,
                                    const LoadOptions& options) {
  try {
    return checkpoint::load_module(
        *state.model, snapshot.model,
        {.strict = options.strict, .ignore = options.ignore_keys, .ignore_prefix = "state/model/"});
  } catch (const c10::Error& error) {
    std::string lacking;
    const std::vector<std::string> own = policy_names(engine);
    for (const auto& name : snapshot.meta.get_or("policies", std::vector<std::string>())) {
      if (std::find(own.begin(), own.end(), name) == own.end()) {
        lacking += (lacking.empty() ? "" : ", ") + name;
      }
    }
    TORCH_CHECK(lacking.empty(), error.what_without_backtrace(),
                "\nThe checkpoint's recipe had policies that this one lacks: ", lacking, ".");
    throw;
  }
}

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
    TORCH_CHECK(errors[rank].empty(), "rank ", rank, ": ", errors[rank]);
  }
}

}  // namespace detail

/// The whole run as a checkpoint keeps it; a collective. Tensors are shared with the run.
template <class Engine>
checkpoint::Snapshot collect(Engine& engine, const State& state, Run& run,
                             const SaveOptions& options) {
  checkpoint::Snapshot snapshot;
  snapshot.meta.put("run_name", state.run_name);
  snapshot.meta.put("world_size", std::int64_t{state.world_size});
  snapshot.meta.put("precision", std::string(to_string(state.precision)));
  snapshot.meta.put("epoch", state.timestamp.epoch);
  snapshot.meta.put("batch", state.timestamp.batch);
  snapshot.meta.put("device_train_microbatch_size", state.device_train_microbatch_size);
  snapshot.meta.put("weights_only", options.weights_only);
  snapshot.meta.put("policies", detail::policy_names(engine));
  checkpoint::save_module(*state.model, snapshot.model);
  if (!options.weights_only) {
    save_run(state, run, snapshot.state, options.metrics);
    detail::save_policies(engine, snapshot.state.child("policies"));
    save_rank_states(engine, *state.communicator, snapshot.state.child("rng"));
  }
  checkpoint::IgnoreKeys keys(options.ignore_keys);
  std::vector<std::string> left_out;
  detail::leave_out(keys, snapshot, left_out);
  if (state.rank == 0 && !std::exchange(run.checked_save_keys, true)) {
    detail::warn_unmatched(keys, "save_ignore_keys");
  }
  return snapshot;
}

/// Writes what a saver found due. Returns the checkpoint's name in its folder.
/// Throws c10::Error on every rank when it cannot be written and the run is to stop then.
template <class Engine>
std::string save(checkpoint::Saver& saver, Engine& engine, const State& state, Run& run) {
  const std::string name = saver.begin(state);
  run.saving.settle(*state.communicator);
  const checkpoint::SaverOptions& how = saver.options();
  run.saving.write(*state.communicator, saver,
                   checkpoint::make_pages(collect(engine, state, run,
                                                  {.weights_only = how.weights_only,
                                                   .metrics = run.save_metrics,
                                                   .ignore_keys = how.ignore_keys})));
  return name;
}

/// Writes a checkpoint of the whole run at `path` now; all ranks call it, rank 0 writes.
///
/// Throws c10::Error on every rank when it cannot be written; then `path` is as it was.
template <class Engine>
void save_checkpoint(const std::string& path, Engine& engine, const State& state, Run& run,
                     const SaveOptions& options, bool overwrite) {
  run.saving.settle(*state.communicator);
  const checkpoint::Snapshot snapshot = collect(engine, state, run, options);
  if (const auto error = on_rank_zero(
          *state.communicator, [&] { checkpoint::write_snapshot(path, snapshot, overwrite); })) {
    std::rethrow_exception(error);
  }
}

/// Puts the run where a checkpoint left it: weights, optimizers, schedule, policies, time, random
/// streams. The generators of LibTorch are set just before the next training batch.
///
/// Returns what was taken and what not. Throws c10::Error on every rank when the checkpoint is
/// damaged or does not fit, saying what differs.
template <class Engine>
RunLoadReport load_checkpoint(const std::string& path, Engine& engine, State& state, Run& run,
                              const LoadOptions& options) {
  RunLoadReport report;
  report.path = path;
  report.weights_only = options.weights_only;
  checkpoint::IgnoreKeys keys(options.ignore_keys);
  checkpoint::Snapshot snapshot;
  detail::on_every_rank(*state.communicator, [&] {
    snapshot = checkpoint::read_snapshot(path, {.state = !options.weights_only});
    TORCH_CHECK(options.weights_only || !snapshot.meta.get_or("weights_only", false),
                "the checkpoint ", path,
                " holds weights only; set load_weights_only to start from them");
    detail::leave_out(keys, snapshot, report.ignored);
    if (snapshot.state.contains("policies")) {
      detail::prepare_policies(engine, state, snapshot.state.child("policies"));
    }
    report.model = detail::load_weights(engine, state, snapshot, options);
    if (!options.weights_only) {
      load_run(state, run, snapshot.state, report);
      detail::load_policies(
          engine,
          snapshot.state.contains("policies") ? snapshot.state.child("policies") : Archive(),
          report);
    }
  });
  if (!options.weights_only && snapshot.state.contains("rng")) {
    run.restore_rng = load_rank_state(engine, state, snapshot.state.child("rng"));
    report.restored.emplace_back("rng");
  }
  TORCH_CHECK(
      state.communicator->all_reduce_value(state.timestamp.batch, dist::ReduceOp::minimum) ==
          state.communicator->all_reduce_value(state.timestamp.batch, dist::ReduceOp::maximum),
      "the ranks have loaded different checkpoints from ", path, "; rank ", state.rank,
      " is at batch ", state.timestamp.batch);
  if (state.rank == 0) {
    detail::warn_unmatched(keys, "load_ignore_keys");
    if (!report.complete()) {
      TORCH_WARN(report.text());
    }
  }
  return report;
}

}  // namespace tutti::train
