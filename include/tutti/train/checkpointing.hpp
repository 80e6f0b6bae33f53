#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/checkpoint/filename.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/train/rank_state.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/timestamp_state.hpp>

namespace tutti::train {

/// How save_checkpoint() writes.
struct SaveOptions {
  bool weights_only = false;
  bool overwrite = false;
};

/// What load_checkpoint() takes.
struct LoadOptions {
  bool weights_only = false;
  bool strict = true;  ///< weights must agree in names and shapes
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
void load_policies(Engine& engine, const Archive& archive) {
  std::vector<std::string> left = archive.names();
  each_saving_policy(engine, [&](std::string_view name, auto& policy) {
    if (!archive.contains(name)) {
      TORCH_WARN("the checkpoint has no state of ", name, ", which starts afresh");
      return;
    }
    policy.load(archive.child(name));
    std::erase(left, name);
  });
  for (const std::string& name : left) {
    TORCH_WARN("the checkpoint has state of ", name, ", which this recipe lacks; it is ignored");
  }
}

inline void save_run(const State& state, const Run& run, Archive& archive) {
  save_timestamp(state.timestamp, archive.child("timestamp"));
  archive.put("rank_zero_seed", state.rank_zero_seed);
  archive.put("initial_lrs", run.initial_lrs);
  archive.put("saved", run.saved);
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    checkpoint::save_optimizer(*state.optimizers[i],
                               archive.child("optimizers").child(std::to_string(i)),
                               state.model.get());
  }
  if (run.scaler) {
    run.scaler->save(archive.child("scaler"));
  }
}

inline void load_run(State& state, Run& run, const Archive& archive) {
  const Archive& optimizers = archive.child("optimizers");
  TORCH_CHECK(optimizers.size() == state.optimizers.size(), "the checkpoint has ",
              optimizers.size(), " optimizers, this run has ", state.optimizers.size());
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    checkpoint::load_optimizer(*state.optimizers[i], optimizers.child(std::to_string(i)),
                               state.model.get());
  }
  state.timestamp = load_timestamp(archive.child("timestamp"));
  state.previous_timestamp = state.timestamp;
  state.rank_zero_seed = archive.get<std::uint64_t>("rank_zero_seed");
  state.seed = state.rank_zero_seed + static_cast<std::uint64_t>(state.rank);
  run.initial_lrs = archive.get<std::vector<double>>("initial_lrs");
  run.saved = archive.get<std::vector<std::string>>("saved");
  if (run.scaler && archive.contains("scaler")) {
    run.scaler->load(archive.child("scaler"));
  }
}

// Runs `write` on rank 0; an error there is thrown on every rank, so nobody waits for nothing.
template <class F>
void on_rank_zero(dist::Communicator& world, F&& write) {
  std::string error;
  std::exception_ptr original;
  if (world.rank() == 0) {
    try {
      write();
    } catch (const std::exception& caught) {
      error = std::string("rank 0: ") + caught.what();
      original = std::current_exception();
    }
  }
  error = world.broadcast_bytes(error);
  if (original) {
    std::rethrow_exception(original);
  }
  TORCH_CHECK(error.empty(), error);
}

}  // namespace detail

/// Writes a checkpoint of the whole run at `path`; all ranks call it, rank 0 writes.
///
/// Throws c10::Error on every rank when it cannot be written; then `path` is as it was.
template <class Engine>
void save_checkpoint(const std::string& path, Engine& engine, const State& state, const Run& run,
                     SaveOptions options) {
  checkpoint::Snapshot snapshot;
  snapshot.meta.put("run_name", state.run_name);
  snapshot.meta.put("world_size", std::int64_t{state.world_size});
  snapshot.meta.put("precision", std::string(to_string(state.precision)));
  snapshot.meta.put("epoch", state.timestamp.epoch);
  snapshot.meta.put("batch", state.timestamp.batch);
  snapshot.meta.put("device_train_microbatch_size", state.device_train_microbatch_size);
  checkpoint::save_module(*state.model, snapshot.model);
  if (!options.weights_only) {
    detail::save_run(state, run, snapshot.state);
    detail::save_policies(engine, snapshot.state.child("policies"));
    save_rank_states(engine, *state.communicator, snapshot.state.child("ranks"));
  }
  detail::on_rank_zero(*state.communicator,
                       [&] { checkpoint::write_snapshot(path, snapshot, options.overwrite); });
}

/// Puts the run where a checkpoint left it: weights, optimizers, schedule, policies, time, random
/// streams. The generators of LibTorch are set just before the next training batch.
/// Throws c10::Error when the checkpoint is damaged or does not fit, saying what differs.
template <class Engine>
void load_checkpoint(const std::string& path, Engine& engine, State& state, Run& run,
                     LoadOptions options) {
  const checkpoint::Snapshot snapshot =
      checkpoint::read_snapshot(path, {.state = !options.weights_only});
  if (snapshot.state.contains("policies")) {
    detail::prepare_policies(engine, state, snapshot.state.child("policies"));
  }
  const auto report =
      checkpoint::load_module(*state.model, snapshot.model, {.strict = options.strict});
  if (!report.complete()) {
    TORCH_WARN("the checkpoint's weights were taken in part:", report.text());
  }
  if (options.weights_only) {
    return;
  }
  TORCH_CHECK(snapshot.state.contains("timestamp"), "the checkpoint ", path,
              " holds weights only; set load_weights_only to start from them");
  detail::load_run(state, run, snapshot.state);
  detail::load_policies(engine, snapshot.state.child("policies"));
  run.restore_rng = load_rank_state(engine, state, snapshot.state.child("ranks"));
}

/// Writes the checkpoints of a run into its folder, points `latest` at the newest and removes those
/// beyond the number to keep.
class Saver {
 public:
  /// folder, filename: patterns, see checkpoint::format_name. keep: newest ones; -1: all.
  struct Options {
    std::string folder;
    std::string filename = "ep{epoch}-ba{batch}";
    std::string latest_filename = "latest";
    bool overwrite = false;
    bool weights_only = false;
    std::int64_t keep = -1;
  };

  Saver(Options options, const State& state)
      : options_(std::move(options)),
        folder_(checkpoint::format_name(options_.folder, fields(state))) {}

  /// Where the run's checkpoints are.
  [[nodiscard]] const std::string& folder() const { return folder_; }

  /// Refuses a folder that holds checkpoints from later in a run, unless overwriting is allowed.
  void check_folder(const State& state) const {
    if (!options_.overwrite) {
      detail::on_rank_zero(*state.communicator, [&] {
        checkpoint::check_no_newer(folder_, options_.filename, state.timestamp);
      });
    }
  }

  /// Saves now. Returns the checkpoint's name in the folder.
  template <class Engine>
  std::string save(Engine& engine, const State& state, Run& run) {
    const std::string name = checkpoint::format_name(options_.filename, fields(state));
    const std::string path = folder_ + "/" + name;
    std::erase(run.saved, path);
    run.saved.push_back(path);  // before writing, so that the checkpoint lists itself
    save_checkpoint(path, engine, state, run,
                    {.weights_only = options_.weights_only, .overwrite = true});
    detail::on_rank_zero(*state.communicator, [&] {
      if (!options_.latest_filename.empty() && options_.keep != 0) {
        checkpoint::point_latest(folder_ + "/" + options_.latest_filename, name);
      }
      checkpoint::keep_newest(run.saved, options_.keep);
    });
    return name;
  }

 private:
  static checkpoint::NameFields fields(const State& state) {
    return {.run_name = state.run_name,
            .rank = state.rank,
            .world_size = state.world_size,
            .timestamp = state.timestamp};
  }

  Options options_;
  std::string folder_;
};

}  // namespace tutti::train
