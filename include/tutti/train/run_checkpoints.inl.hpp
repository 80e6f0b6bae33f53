// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/run_path.hpp>
#include <tutti/train/run_checkpoints.hpp>

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
  const std::string load_path = run_path(options.load_path, state_);
  LoadSource source = choose_load(options, load_path, folder, latest, *state_.communicator, [&] {
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
  const auto first = [&, due = saver] { lock(*due); };
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
  const checkpoint::SnapshotFiles files =
      checkpoint::to_files(collected(weights_only, ignore_keys_));
  const bool writes = state_.rank == 0;
  if (state_.world_size > 1 && writes) {
    wait_for_devices({&files.model, &files.state});
  }
  run_while_others_wait(*state_.communicator, writes, [&] {
    checkpoint::write_files(state_.output_path(path), files, overwrite_);
  });
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
  const bool here = state_.rank == 0;
  for (checkpoint::Saver* saver : savers_) {
    const std::string inside = saver == this->own() ? path : std::string();
    std::string own;
    bool fetched = false;
    run_while_others_wait(*state_.communicator, here, [&] {
      own = checkpoint::claim(*saver, inside);
      fetched = !own.empty() && fetch_compared(*saver);
      own = fetched ? checkpoint::claim(*saver, inside) : own;
    });
    if (state_.world_size > 1) {
      own = state_.communicator->broadcast_bytes(own);
    }
    saver->adopt(own, state_.timestamp.batch);
    run_while_others_wait(*state_.communicator, here, [&] {
      if (fetched && !saver->latest().empty()) {
        checkpoint::point_latest(saver->folder() + "/" + saver->latest(),
                                 std::filesystem::path(saver->best()).filename().string());
      }
      catch_up(*saver);
    });
  }
}

TUTTI_INLINE bool RunCheckpoints::fetch_compared(const checkpoint::Saver& saver) {
  bool any = false;
  for (const std::string& name : saver.compared()) {
    for (checkpoint::Mirror* mirror : mirrors_) {
      if (!checkpoint::detail::path_exists(saver.folder() + '/' + name)) {
        lock(saver);
        any = mirror->fetch_named(saver.folder(), name) || any;
      }
    }
  }
  return any;
}

TUTTI_INLINE void RunCheckpoints::catch_up(const checkpoint::Saver& saver) {
  if (!state_.scratch_folder.empty()) {
    return;
  }
  const std::string link = saver.latest().empty() ? "" : saver.folder() + "/" + saver.latest();
  for (checkpoint::Mirror* mirror : mirrors_) {
    mirror->catch_up(saver.saved(), link);
  }
}

TUTTI_INLINE std::vector<std::string> RunCheckpoints::saved_by_tokens() const {
  std::vector<std::string> out;
  for (const checkpoint::Saver* saver : savers_) {
    const checkpoint::SaverOptions& options = saver->options();
    if (options.monitor.empty() && options.interval.time().unit() == TimeUnit::token) {
      out.push_back(saver->folder());
    }
  }
  return out;
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
    for (const auto& optimizer : state_.optimizers) {
      if (!savers_[i]->options().weights_only) {
        checkpoint::check_saves(*optimizer);
      }
    }
    for (std::size_t j = i + 1; j < savers_.size(); ++j) {
      TUTTI_CHECK_VALUE(savers_[i]->folder() != savers_[j]->folder(),
                        "two savers write into the folder '", savers_[i]->folder(),
                        "'; give each a folder of its own");
      check_copies(*savers_[i], *savers_[j]);
    }
  }
}

TUTTI_INLINE void RunCheckpoints::check_copies(const checkpoint::Saver& one,
                                               const checkpoint::Saver& other) const {
  const bool apart = one.options().filename != other.options().filename &&
                     (one.latest().empty() || one.latest() != other.latest());
  for (const checkpoint::Mirror* mirror : mirrors_) {
    const std::string address = mirror->address_of(one.folder());
    TUTTI_CHECK_VALUE(apart || address.empty() || address != mirror->address_of(other.folder()),
                      "the savers of '", one.folder(), "' and '", other.folder(),
                      "' would both be copied to '", address,
                      "' under the same names; give the folders other last parts, or the savers "
                      "other names of files and pointers");
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
