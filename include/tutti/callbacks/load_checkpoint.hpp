// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <torch/nn/module.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/ignore.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/remote.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/object_store.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/local_rank_zero.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Starts from the weights of another run's checkpoint.
///
///     LoadCheckpoint{.load_path = "pretrained/latest", .ignore_keys = {"state/model/fc.*"}}
///
/// At BeforeLoad the weights of the checkpoint go into the model; a checkpoint of this run
/// (TrainerOptions::load_path) then replaces them, so a run that was interrupted resumes from it.
/// At AfterLoad they replace those of this run's checkpoint.
///
///     LoadCheckpoint{.load_path = "s3://bucket/vit-b16/checkpoints/latest",
///                    .object_store = tutti::CommandObjectStore{...}}
///
/// takes them from an object store, in the form in which RemoteUploader leaves them. Each node
/// downloads the checkpoint once, into a temporary folder.
///
/// Difference from the reference: the weights are all that is taken. To take over optimizer,
/// schedule and time as well is what TrainerOptions::load_path does.
/// Source: MosaicML Composer, `composer.callbacks.LoadCheckpoint`.
struct LoadCheckpoint final {
  /// When it loads.
  enum class When : std::uint8_t { before_load, after_load };

  std::string load_path{};           ///< a checkpoint, or a folder's "latest"; obligatory; with
                                     ///< placeholders, as {run_name}
  bool strict_model_weights = true;  ///< names and shapes must agree
  Keys ignore_keys{};                ///< globs of weights that are left out: "state/model/fc.*"
  When event = When::before_load;
  AnyObjectStore object_store{};  ///< where load_path is: an address in it, or an object's name

  static constexpr std::string_view name = "LoadCheckpoint";
  static constexpr Role role = Role::callback;
  using events = types<BeforeLoad, AfterLoad>;

  /// Throws c10::ValueError when load_path is not set, or an address in no store or another one.
  void validate() const;

  bool match(BeforeLoad, const State&) const { return event == When::before_load; }
  bool match(AfterLoad, const State&) const { return event == When::after_load; }

  /// Throws c10::Error when the checkpoint is missing or damaged, or does not fit, saying what
  /// differs.
  void apply(BeforeLoad, State& state) const { load_weights(state); }
  void apply(AfterLoad, State& state) const { load_weights(state); }

 private:
  [[nodiscard]] bool is_address() const { return load_path.find("://") != std::string::npos; }

  void load_weights(State& state) const;

  void take(State& state, const checkpoint::Snapshot& snapshot, const std::string& path) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/load_checkpoint.inl.hpp>
#endif
