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

  // What is pointed to is not where the run has ended.
  void warn_of_old() const;

  // Refuses two savers that would write and remove each other's checkpoints.
  void check_savers() const;

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

namespace tutti::train {

TUTTI_INLINE RunCheckpoints::RunCheckpoints(State& state, Run& run) : state_(state), run_(run) {}

TUTTI_INLINE RunCheckpoints::~RunCheckpoints() = default;

TUTTI_INLINE void RunCheckpoints::open(const TrainerOptions& options, PolicyStates policies) {
  policies_ = std::move(policies);
  if (!options.save_folder.empty()) {
    own_.emplace(saver_options(options), state_);
    savers_.push_back(&*own_);
  }
  for (const PolicyState& policy : policies_) {
    if (policy.saver != nullptr) {
      savers_.push_back(policy.saver);
    }
    if (policy.mirror != nullptr) {
      mirrors_.push_back(policy.mirror);
    }
  }
  check_savers();
  metrics_ = options.save_metrics;
  ignore_keys_ = options.save_ignore_keys;
  overwrite_ = options.save_overwrite;
  layout_ = options.checkpoint_layout;
  saving_.configure(options.save_async, options.save_on_error);
  must_write_ = options.save_on_error == OnSaveError::stop;
  if (state_.scratch_folder.empty()) {  // what a dry run writes stays here
    saving_.set_mirrors(mirrors_);
  }
  on_zero([&] {
    for (const checkpoint::Saver* saver : savers_) {
      lock_existing(*saver);
    }
  });
}

TUTTI_INLINE RunLoadReport RunCheckpoints::load(const TrainerOptions& options) {
  const std::string folder = own_ ? own_->folder() : std::string();
  const std::string latest = own_ ? own_->latest() : std::string();
  LoadSource source = choose_load(options, folder, latest, *state_.communicator, [&] {
    on_zero([&] {
      if (!mirrors_.empty()) {
        lock(*own_);
      }
    });
    bool found = false;
    for (checkpoint::Mirror* mirror : mirrors_) {
      run_while_others_wait(*state_.communicator, state_.rank == 0,
                            [&] { found = found || mirror->fetch_latest(folder, latest); });
    }
  });
  continues_ = source.continues;
  source.options.shards = shards_of(options.sharding, dist::data_ranks(state_));
  if (source.path.empty()) {
    return {};
  }
  const std::optional<DownloadedCheckpoint> downloaded =
      is_address(source.path) ? std::optional<DownloadedCheckpoint>(std::in_place, source.path,
                                                                    mirrors_, *state_.communicator)
                              : std::nullopt;
  const std::string& folder_here = downloaded ? downloaded->folder() : source.path;
  RunLoadReport report = checkpoint::speaking_of(source.path, folder_here, [&] {
    return load_checkpoint(folder_here, policies_, state_, run_, own(), source.options);
  });
  report.path = source.path;
  adopt_lists(folder_here);
  if (state_.rank == 0 && !report.complete()) {
    TORCH_WARN(report.text());
  }
  state_.logger.log_hyperparameters({{"load_path", source.path}});
  return report;
}

TUTTI_INLINE void RunCheckpoints::check_folders() {
  on_zero([&] {
    for (const checkpoint::Saver* saver : savers_) {
      if (must_write_) {
        lock(*saver);  // better now than at the end of an epoch
      } else {
        lock_existing(*saver);
      }
      if (!saver->options().overwrite) {
        checkpoint::check_no_newer(saver->folder(), saver->options().filename, state_.timestamp,
                                   [&](const std::filesystem::path& path) {
                                     return continues_ && checkpoint::carries(path, saver->id());
                                   });
      }
    }
  });
}

TUTTI_INLINE void RunCheckpoints::restart() {
  for (checkpoint::Saver* saver : savers_) {
    saver->restart();
  }
}

template <Event E>
bool RunCheckpoints::any_due(E event, bool at_once) {
  bool any = false;
  for (checkpoint::Saver* saver : savers_) {
    any = saver->due(event, state_, at_once) || any;
  }
  return any;
}

TUTTI_INLINE bool RunCheckpoints::due(BatchCheckpoint event, bool at_once) {
  return any_due(event, at_once);
}

TUTTI_INLINE bool RunCheckpoints::due(EpochCheckpoint event, bool at_once) {
  return any_due(event, at_once);
}

TUTTI_INLINE bool RunCheckpoints::due(IterationCheckpoint event, bool at_once) {
  return any_due(event, at_once);
}

TUTTI_INLINE bool RunCheckpoints::due(FitEnd event, bool at_once) {
  return any_due(event, at_once);
}

TUTTI_INLINE std::string RunCheckpoints::save_next() {
  if (begun_.empty()) {  // all at once, so that each checkpoint lists those beside it, too
    for (checkpoint::Saver* saver : savers_) {
      if (saver->is_due()) {
        begun_.emplace_back(saver, saver->begin(state_));
      }
    }
  }
  if (begun_.empty()) {
    return {};
  }
  const auto [saver, name] = std::move(begun_.front());
  begun_.erase(begun_.begin());
  wait();
  const checkpoint::SaverOptions& how = saver->options();
  const auto first = [&, saver = saver] { lock(*saver); };
  const bool sharded = layout_ == CheckpointLayout::sharded && !how.fill_files;
  const CheckpointScope entered(policies_, state_);  // into shards, which are put together then
  const auto whole = summoned(sharded);
  if (sharded) {
    saving_.write(*state_.communicator, *saver, parts(how.weights_only, how.ignore_keys), first);
    return name;
  }
  checkpoint::SnapshotFiles files;
  if (how.fill_files) {
    how.fill_files(files);
  } else {
    files = checkpoint::to_files(collected(how.weights_only, how.ignore_keys));
  }
  saving_.write(*state_.communicator, *saver, std::move(files), first);
  return name;
}

TUTTI_INLINE void RunCheckpoints::save(const std::string& path, bool weights_only) {
  wait();
  const bool sharded = layout_ == CheckpointLayout::sharded;
  const CheckpointScope entered(policies_, state_);  // into shards, which are put together then
  const auto whole = summoned(sharded);
  if (sharded) {
    ShardedJob({.path = path, .overwrite = overwrite_},
               parts(weights_only, ignore_keys_))(*state_.communicator);
    return;
  }
  const checkpoint::Snapshot snapshot = collected(weights_only, ignore_keys_);
  on_zero([&] { checkpoint::write_snapshot(state_.output_path(path), snapshot, overwrite_); });
}

TUTTI_INLINE bool RunCheckpoints::failed() const noexcept {
  bool any = saving_.failed();
  for (const checkpoint::Mirror* mirror : mirrors_) {
    any = any || mirror->failed();
  }
  return any;
}

TUTTI_INLINE void RunCheckpoints::wait() {
  saving_.wait(*state_.communicator);
  for (checkpoint::Mirror* mirror : mirrors_) {
    on_zero([&] { mirror->check(); });
  }
}

TUTTI_INLINE void RunCheckpoints::finish() {
  wait();
  for (checkpoint::Mirror* mirror : mirrors_) {
    // Many short waits, since the other ranks wait in a collective, which has a time limit.
    for (bool waiting = true; waiting;) {
      waiting = state_.rank == 0 && !mirror->wait(std::chrono::seconds(1));
      waiting = state_.communicator->all_reduce_value(std::int64_t{waiting},
                                                      dist::ReduceOp::maximum) != 0;
    }
  }
  wait();
  release();
  if (state_.rank == 0) {
    warn_of_old();
  }
}

TUTTI_INLINE void RunCheckpoints::abandon() {
  saving_.abandon();
  release();
}

TUTTI_INLINE std::string RunCheckpoints::last() const {
  return own_ && !own_->saved().empty() ? own_->saved().back() : std::string();
}

TUTTI_INLINE std::string RunCheckpoints::best() const {
  for (const checkpoint::Saver* saver : savers_) {
    if (const std::string best = saver->best(); !best.empty()) {
      return best;
    }
  }
  return {};
}

TUTTI_INLINE void RunCheckpoints::load_weights(const std::string& path) {
  wait();  // it may be the one under way
  load_checkpoint(path, policies_, state_, run_, nullptr, {.weights_only = true});
  give_everywhere(copy_weights(*state_.model, /*to_host=*/false), policies_, state_);
}

TUTTI_INLINE void RunCheckpoints::go_back(std::int64_t batch) {
  TUTTI_CHECK(state_.sharding == nullptr,
              "a policy wants the run to go back to a checkpoint, but a sharded run loads one "
              "only at its start; set reload_after of SkipSpikes to 0, or sharding.stage to "
              "ShardStage::none");
  wait();
  std::string path;
  for (const std::string& one : own_ ? own_->saved() : std::vector<std::string>()) {
    path = checkpoint::detail::batch_of(one).value_or(batch + 1) <= batch ? one : path;
  }
  TUTTI_CHECK(!path.empty(), "the run cannot go back to a checkpoint of at most ", batch,
              " batches: ",
              own_ ? "it has none, or they hold weights alone; save more often, or "
                     "keep more"
                   : "it writes none; set save_folder");
  auto best = std::exchange(run_.best, nullptr);
  auto values = state_.eval_metric_values;
  load_checkpoint(
      path, policies_, state_, run_, nullptr,
      {.ignore_keys = {"state/timestamp", "state/schedulers", "state/rank_zero_seed", "rng"}});
  for (const PolicyState& policy : policies_) {
    if (policy.take_loaded != nullptr) {
      policy.take_loaded(policy.policy, state_);
    }
  }
  run_.best = std::move(best);
  state_.eval_metric_values = std::move(values);
}

TUTTI_INLINE std::array<std::unique_ptr<dist::Summoned>, 2> RunCheckpoints::summoned(
    bool sharded) const {
  const bool wanted = !sharded || !detail::kept_elsewhere(policies_, state_).empty();
  std::array<std::unique_ptr<dist::Summoned>, 2> out;
  if (wanted && state_.sharding != nullptr) {
    out[0] = state_.sharding->summon();
  }
  if (wanted && state_.spread != nullptr) {
    out[1] = state_.spread->summon();  // of what is whole then; gone first
  }
  return out;
}

TUTTI_INLINE checkpoint::SaverOptions RunCheckpoints::saver_options(const TrainerOptions& options) {
  return {.folder = options.save_folder,
          .filename = options.save_filename,
          .latest_filename = options.save_latest_filename,
          .interval = options.save_interval,
          .overwrite = options.save_overwrite,
          .weights_only = options.save_weights_only,
          .keep = options.save_num_checkpoints_to_keep,
          .ignore_keys = options.save_ignore_keys};
}

TUTTI_INLINE void RunCheckpoints::lock(const checkpoint::Saver& saver) {
  if (!locks_.contains(&saver)) {
    checkpoint::make_folder(saver.folder());
    locks_.try_emplace(&saver, saver.folder());
  }
}

TUTTI_INLINE void RunCheckpoints::lock_existing(const checkpoint::Saver& saver) {
  if (!locks_.contains(&saver) && checkpoint::detail::is_folder(saver.folder()) &&
      !locks_.try_emplace(&saver, saver.folder(), checkpoint::CannotLock::passes)
           .first->second.held()) {
    locks_.erase(&saver);
  }
}

TUTTI_INLINE void RunCheckpoints::adopt_lists(const std::string& path) {
  for (checkpoint::Saver* saver : savers_) {
    std::string own;
    on_zero([&] { own = checkpoint::claim(*saver, saver == this->own() ? path : std::string()); });
    if (state_.world_size > 1) {
      own = state_.communicator->broadcast_bytes(own);
    }
    saver->adopt(own, state_.timestamp.batch);
  }
}

TUTTI_INLINE void RunCheckpoints::warn_of_old() const {
  for (const checkpoint::Saver* saver : savers_) {
    if (saver->failed()) {
      const std::vector<std::string> saved = saver->saved();
      TORCH_WARN("the last checkpoint in '", saver->folder(), "' could not be written; the run ",
                 "has ended after batch ", state_.timestamp.batch, ", and ",
                 saved.empty() ? "no checkpoint of it is there"
                               : "the newest one there, '" + saved.back() + "', is older");
    }
  }
}

TUTTI_INLINE void RunCheckpoints::check_savers() const {
  for (std::size_t i = 0; i < savers_.size(); ++i) {
    for (std::size_t j = i + 1; j < savers_.size(); ++j) {
      TUTTI_CHECK_VALUE(savers_[i]->folder() != savers_[j]->folder(),
                        "two savers write into the folder '", savers_[i]->folder(),
                        "'; give each a folder of its own");
    }
  }
}

TUTTI_INLINE checkpoint::Snapshot RunCheckpoints::collected(
    bool weights_only, const std::vector<std::string>& ignore_keys, checkpoint::PartPlaces* parts) {
  return collect(policies_, state_, run_, own(),
                 {.weights_only = weights_only,
                  .metrics = metrics_,
                  .ignore_keys = ignore_keys,
                  .warn_unmatched = !std::exchange(checked_keys_, true)},
                 parts);
}

TUTTI_INLINE checkpoint::ShardedSnapshot RunCheckpoints::parts(
    bool weights_only, const std::vector<std::string>& ignore_keys) {
  checkpoint::PartPlaces where;
  const checkpoint::Snapshot snapshot = collected(weights_only, ignore_keys, &where);
  return checkpoint::to_sharded(snapshot, where, state_.rank, dist::data_rank(state_));
}

TUTTI_INLINE std::string Run::last_checkpoint() const {
  return checkpoints ? checkpoints->last() : std::string();
}

TUTTI_INLINE void Run::finish() {
  if (checkpoints) {
    checkpoints->finish();
  }
}

TUTTI_INLINE void Run::release_folders() {
  if (checkpoints) {
    checkpoints->release();
  }
}

}  // namespace tutti::train

#endif
