// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/folder_lock.hpp>
#include <tutti/checkpoint/latest.hpp>
#include <tutti/checkpoint/mirror.hpp>
#include <tutti/checkpoint/save_job.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/train/best_weights.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/detail/sharding_support.hpp>
#include <tutti/train/downloaded_checkpoint.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/resume.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/saving.hpp>
#include <tutti/train/sharded_job.hpp>
#include <tutti/train/together.hpp>

namespace tutti::train {

/// All that a run does with checkpoints. A run has it only when it is to save or load something.
///
/// All ranks call the same members in the same order; only failed() and abandon() are for each
/// alone. What cannot be written throws c10::Error on every rank, or warns when the options want
/// that.
class RunCheckpoints {
 public:
  RunCheckpoints(State& state, Run& run);
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// Takes the options' saver, then those of policies; after Init. From now on no other trainer
  /// can save into their folders: see checkpoint::FolderLock.
  /// Throws c10::ValueError when two would write into one folder, c10::Error when another trainer
  /// saves there.
  void open(const TrainerOptions& options, PolicyStates policies);

  /// Loads what the options name, if anything. Returns what was taken.
  RunLoadReport load(const TrainerOptions& options);

  /// What was loaded is where the options' own folder points to.
  [[nodiscard]] bool continues() const { return continues_; }

  /// Refuses folders that others save into, or that hold checkpoints from later in a run, unless
  /// overwriting is allowed or they are those of the run that continues.
  void check_folders();

  /// Forgets when it saved last; the files stay.
  void restart();

  /// Whether a saver wants a checkpoint right after this event; it remembers that.
  /// at_once: the run is about to stop.
  bool due(BatchCheckpoint event, bool at_once);
  bool due(EpochCheckpoint event, bool at_once);
  bool due(IterationCheckpoint event, bool at_once);
  bool due(FitEnd event, bool at_once);

  /// Writes for the first saver that is due. Returns the checkpoint's name in its folder; empty
  /// when none is due any more.
  std::string save_next();

  /// Writes a checkpoint at `path` now. weights_only: the model alone.
  void save(const std::string& path, bool weights_only);

  /// What is being written in the background, or copied elsewhere, has failed, which wait() would
  /// throw; known on rank 0 alone.
  [[nodiscard]] bool failed() const noexcept;

  /// Waits for what is being written.
  void wait();

  /// Waits for that and for the copies that policies make of it, then leaves the folders to others,
  /// until check_folders() is called again.
  void finish();

  /// The same where the run is failing already: a failure is a warning.
  void abandon();

  /// Leaves the folders to others.
  void release() { locks_.clear(); }

  /// The folders of savers whose interval counts tokens.
  [[nodiscard]] std::vector<std::string> saved_by_tokens() const;

  /// The newest checkpoint that the options' own saver has written and not removed; empty: none.
  [[nodiscard]] std::string last() const;

  /// The best checkpoint of the first policy's saver that has a monitor; empty: none.
  [[nodiscard]] std::string best() const;

  /// Gives the model the weights of a checkpoint, also in place of the averages that policies put
  /// there to be evaluated; all else stays. Throws c10::Error when they do not fit.
  void load_weights(const std::string& path);

  /// Puts weights, optimizers and policies where a checkpoint of the options' own saver has them,
  /// the newest of at most so many batches; time, schedule, data and generators go on.
  /// Throws c10::Error when there is none.
  void go_back(std::int64_t batch);

 private:
  // Whole parameters in the model for as long as it lives; null where they always are, or nobody
  // needs them: for a sharded checkpoint only a checksum of weights that stay with the program
  // does.
  [[nodiscard]] std::array<std::unique_ptr<dist::Summoned>, 2> summoned(bool sharded) const;

  static checkpoint::SaverOptions saver_options(const TrainerOptions& options);

  // On rank 0; what it throws is thrown on every rank.
  template <class F>
  void on_zero(F&& work) {
    if (const auto error = on_rank_zero(*state_.communicator, std::forward<F>(work))) {
      std::rethrow_exception(error);
    }
  }

  // Makes a saver's folder, and keeps other trainers from saving into it until release().
  void lock(const checkpoint::Saver& saver);

  // The same, where the folder is there and can be written.
  void lock_existing(const checkpoint::Saver& saver);

  // The savers whose lists were loaded go on with what is theirs. path: the loaded checkpoint.
  void adopt_lists(const std::string& path);

  // Brings what a monitor compares with and is not here from where copies are. Returns whether it
  // brought any. On rank 0, as the next.
  bool fetch_compared(const checkpoint::Saver& saver);

  // Has copied what an earlier process wrote and did not copy.
  void catch_up(const checkpoint::Saver& saver);

  // What is pointed to is not where the run has ended.
  void warn_of_old() const;

  // Refuses two savers that would write and remove each other's checkpoints.
  void check_savers() const;

  // The same of their copies.
  void check_copies(const checkpoint::Saver& one, const checkpoint::Saver& other) const;

  template <Event E>
  bool any_due(E event, bool at_once);

  checkpoint::Saver* own() { return own_ ? &*own_ : nullptr; }

  checkpoint::Snapshot collected(bool weights_only, const std::vector<std::string>& ignore_keys,
                                 checkpoint::PartPlaces* parts = nullptr);

  // What this rank writes of a sharded checkpoint; its tensors are the run's.
  checkpoint::ShardedSnapshot parts(bool weights_only, const std::vector<std::string>& ignore_keys);

  State& state_;
  Run& run_;
  PolicyStates policies_;
  std::optional<checkpoint::Saver> own_;                           // of the options
  std::vector<checkpoint::Saver*> savers_;                         // the own one comes first
  std::vector<std::pair<checkpoint::Saver*, std::string>> begun_;  // with the checkpoint's name
  std::vector<checkpoint::Mirror*> mirrors_;
  std::map<const checkpoint::Saver*, checkpoint::FolderLock> locks_;  // on rank 0
  Saving saving_;
  std::vector<std::string> ignore_keys_;  // of save(), as what follows
  CheckpointLayout layout_ = CheckpointLayout::whole;
  bool overwrite_ = false;
  bool must_write_ = true;
  bool metrics_ = false;
  bool checked_keys_ = false;
  bool continues_ = false;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/run_checkpoints.inl.hpp>
#endif
