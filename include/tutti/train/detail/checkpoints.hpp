// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <tutti/core/event.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/policy_states.hpp>

namespace tutti {

struct TrainerOptions;

namespace train {

/// All that a run does with checkpoints. A run has one only when it is to save or load something,
/// so that other programs need not compile what stands behind it; CheckpointPath says more.
///
/// All ranks call the same members in the same order; only failed() and abandon() are for each
/// alone. What cannot be written throws c10::Error on every rank, or warns when the options want
/// that.
class Checkpoints {
 public:
  virtual ~Checkpoints() = default;

  /// Takes the options' saver, then those of policies; after Init. From now on no other trainer
  /// can save into their folders: see checkpoint::FolderLock.
  /// Throws c10::ValueError when two would write into one folder, c10::Error when another trainer
  /// saves there.
  virtual void open(const TrainerOptions& options, PolicyStates policies) = 0;

  /// Loads what the options name, if anything. Returns what was taken.
  virtual RunLoadReport load(const TrainerOptions& options) = 0;

  /// What was loaded is where the options' own folder points to.
  [[nodiscard]] virtual bool continues() const = 0;

  /// Refuses folders that others save into, or that hold checkpoints from later in a run, unless
  /// overwriting is allowed or they are those of the run that continues.
  virtual void check_folders() = 0;

  /// Forgets when it saved last; the files stay.
  virtual void restart() = 0;

  /// Whether a saver wants a checkpoint right after this event; it remembers that.
  /// at_once: the run is about to stop.
  virtual bool due(BatchCheckpoint event, bool at_once) = 0;
  virtual bool due(EpochCheckpoint event, bool at_once) = 0;
  virtual bool due(IterationCheckpoint event, bool at_once) = 0;
  virtual bool due(FitEnd event, bool at_once) = 0;

  /// Writes for the first saver that is due. Returns the checkpoint's name in its folder; empty
  /// when none is due any more.
  virtual std::string save_next() = 0;

  /// Writes a checkpoint at `path` now. weights_only: the model alone.
  virtual void save(const std::string& path, bool weights_only) = 0;

  /// What is being written in the background, or copied elsewhere, has failed, which wait() would
  /// throw; known on rank 0 alone.
  [[nodiscard]] virtual bool failed() const noexcept = 0;

  /// Waits for what is being written.
  virtual void wait() = 0;

  /// Waits for that and for the copies that policies make of it, then leaves the folders to others,
  /// until check_folders() is called again.
  virtual void finish() = 0;

  /// The same where the run is failing already: a failure is a warning.
  virtual void abandon() = 0;

  /// Leaves the folders to others.
  virtual void release() = 0;

  /// The newest checkpoint that the options' own saver has written and not removed; empty: none.
  [[nodiscard]] virtual std::string last() const = 0;

  /// The best checkpoint of the first policy's saver that has a monitor; empty: none.
  [[nodiscard]] virtual std::string best() const = 0;

  /// Gives the model the weights of a checkpoint, also in place of the averages that policies put
  /// there to be evaluated; all else stays. Throws c10::Error when they do not fit.
  virtual void load_weights(const std::string& path) = 0;

  /// Puts weights, optimizers and policies where a checkpoint of the options' own saver has them,
  /// the newest of at most so many batches; time, schedule, data and generators go on.
  /// Throws c10::Error when there is none.
  virtual void go_back(std::int64_t batch) = 0;
};

}  // namespace train

}  // namespace tutti
