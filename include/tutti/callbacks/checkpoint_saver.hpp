// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/callbacks/detail/comparison.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/core/comparison.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// Whether a metric's lower or higher values are better.
enum class MonitorMode : std::uint8_t {
  min,
  max,
  by_name,  ///< as the metric's name says, see Comparison::by_name
};

/// Saves checkpoints beside those of the trainer's own saver, into a folder of its own: at another
/// interval, or those with the best values of an evaluation metric.
///
///     tutti::CheckpointSaver{.folder = "{run_folder}/best", .monitor = "MulticlassAccuracy",
///                            .dataloader_label = "test", .mode = tutti::MonitorMode::max,
///                            .num_checkpoints_to_keep = 3}
///
/// With a monitor a checkpoint is written right after an evaluation during fit, at the *Checkpoint
/// event that follows it, when the value is among the best; `best_filename` then points to the best
/// of all.
/// The trainer writes for it as it does for itself: whole or not at all, in the background when
/// save_async is set.
///
/// Source: MosaicML Composer, `composer.callbacks.CheckpointSaver`, which knows no monitor.
struct CheckpointSaver final {
  static constexpr std::string_view name = "CheckpointSaver";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, FitStart, EvalEnd, FitEnd>;

  std::string folder = "{run_folder}/checkpoints";  ///< placeholders as in the trainer's options
  std::string filename = "ep{epoch}-ba{batch}";
  std::string latest_filename = "latest";  ///< points to the newest; empty: no pointer
  TimeOrFunction save_interval = "1ep";    ///< ignored when monitor is set
  bool overwrite = false;     ///< go on in a folder that holds checkpoints from later in a run
  bool weights_only = false;  ///< the model alone
  std::int64_t num_checkpoints_to_keep = -1;  ///< -1: all, with a monitor 1
  std::vector<std::string> ignore_keys{};     ///< globs of what is left out

  std::string monitor{};           ///< an evaluation metric, "MulticlassAccuracy"; empty: none
  std::string dataloader_label{};  ///< the evaluation set that it is of
  MonitorMode mode = MonitorMode::by_name;  ///< which values are better
  std::string best_filename = "best";       ///< points to the best; empty: no pointer

  /// What it holds while it runs; not an option.
  struct Run {
    std::optional<checkpoint::Saver> saver{};  ///< from Init
    bool trained = false;                      ///< a fit came to its end
  } run{};

  /// Throws c10::ValueError when options are out of range or contradict each other.
  void validate() const {
    expect(!folder.empty(), "CheckpointSaver: folder", folder, "a path");
    expect(!filename.empty() && filename.find('/') == std::string::npos,
           "CheckpointSaver: filename", filename, "a name without slashes");
    expect(num_checkpoints_to_keep >= -1 && (monitor.empty() || num_checkpoints_to_keep != 0),
           "CheckpointSaver: num_checkpoints_to_keep", num_checkpoints_to_keep,
           "-1 or more, and not 0 with a monitor");
    expect(monitor.empty() == dataloader_label.empty(),
           "CheckpointSaver: monitor and dataloader_label go together: the metric, and the label "
           "of the evaluation set that it is of.");
  }

  void apply(Init, const State& state) {
    const bool best = !monitor.empty();
    run.saver.emplace(
        checkpoint::SaverOptions{
            .folder = folder,
            .filename = filename,
            .latest_filename = best ? best_filename : latest_filename,
            .interval = save_interval,
            .overwrite = overwrite,
            .weights_only = weights_only,
            .keep = best && num_checkpoints_to_keep < 0 ? 1 : num_checkpoints_to_keep,
            .ignore_keys = ignore_keys,
            .monitor = monitor,
            .dataloader_label = dataloader_label,
            .maximize = best && detail::direction(comparison(), monitor) == Comparison::greater},
        state);
    if (best) {
      detail::warn_of_direction(state, name, "mode = MonitorMode", comparison(), monitor, "min",
                                "max");
    }
  }
  /// Warns of a label that no evaluation set has.
  void apply(FitStart, const State& state) const {
    if (!monitor.empty()) {
      detail::warn_of_label(state, name, dataloader_label);
    }
  }
  void apply(EvalEnd, const State& state) { run.saver->evaluated(state); }

  void apply(FitEnd, const State&) { run.trained = true; }

  /// Warns of a monitor that a run which came to its end has never evaluated.
  void close(const State&) const {
    if (!monitor.empty() && run.trained && run.saver && !run.saver->has_evaluated()) {
      TORCH_WARN("CheckpointSaver: no evaluation set called \"", dataloader_label,
                 "\" has been evaluated, so nothing was saved by ", monitor);
    }
  }

  /// What the trainer asks and writes for.
  [[nodiscard]] checkpoint::Saver& checkpoint_saver() { return *run.saver; }

  /// The checkpoints that it has written and not removed: oldest first.
  [[nodiscard]] std::vector<std::string> saved() const {
    return run.saver ? run.saver->saved() : std::vector<std::string>();
  }

  /// A saver that a Switch has turned off has no list, and keeps none.
  void save(Archive& archive) const {
    if (run.saver) {
      run.saver->save(archive);
    }
  }
  void load(const Archive& archive) {
    if (run.saver && archive.contains("names")) {
      run.saver->load(archive);
    }
  }

 private:
  [[nodiscard]] Comparison comparison() const {
    return mode == MonitorMode::min   ? Comparison::less
           : mode == MonitorMode::max ? Comparison::greater
                                      : Comparison::by_name;
  }
};

}  // namespace tutti
