#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <torch/nn/module.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// Starts from the weights of another run's checkpoint.
///
///     LoadCheckpoint{.load_path = "pretrained/latest", .ignore_keys = {"fc.*"}}
///
/// At BeforeLoad the weights of the checkpoint go into the model; a checkpoint of this run
/// (TrainerOptions::load_path) then replaces them, so a run that was interrupted goes on by itself.
/// At AfterLoad they replace those of this run's checkpoint.
///
/// Difference from the reference: the weights are all that is taken. To take over optimizer,
/// schedule and time as well is what TrainerOptions::load_path does.
/// Source: MosaicML Composer, `composer.callbacks.LoadCheckpoint`.
struct LoadCheckpoint final {
  /// When it loads.
  enum class When : std::uint8_t { before_load, after_load };

  std::string load_path{};           ///< a checkpoint, or a folder's "latest"; obligatory
  bool strict_model_weights = true;  ///< names and shapes must agree
  Keys ignore_keys{};                ///< globs of names that are left out: "fc.*"
  When event = When::before_load;

  static constexpr std::string_view name = "LoadCheckpoint";
  static constexpr Role role = Role::callback;
  using events = types<BeforeLoad, AfterLoad>;

  /// Throws c10::ValueError when load_path is not set.
  void validate() const {
    expect(!load_path.empty(),
           "LoadCheckpoint: load_path is empty; set it to a checkpoint's folder.");
  }

  bool match(BeforeLoad, const State&) const { return event == When::before_load; }
  bool match(AfterLoad, const State&) const { return event == When::after_load; }

  /// Throws c10::Error when the checkpoint is missing or damaged, or does not fit, saying what
  /// differs.
  void apply(BeforeLoad, State& state) const { load_weights(state); }
  void apply(AfterLoad, State& state) const { load_weights(state); }

 private:
  void load_weights(State& state) const {
    const checkpoint::Snapshot snapshot = checkpoint::read_snapshot(load_path, {.state = false});
    checkpoint::ModuleLoadOptions options{.strict = strict_model_weights};
    for (const Key& key : ignore_keys) {
      options.ignore.emplace_back(std::string_view(key));
    }
    const auto report = checkpoint::load_module(*state.model, snapshot.model, options);
    if (!report.complete()) {
      TORCH_WARN("LoadCheckpoint: the weights of ", load_path,
                 " were taken in part:", report.text());
    }
  }
};

}  // namespace tutti
