// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/run_state.hpp>

namespace tutti::train::detail {

TUTTI_INLINE std::vector<double> learning_rates(const State& state) {
  std::vector<double> out;
  for (const auto& optimizer : state.optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      out.push_back(group.options().get_lr());
    }
  }
  return out;
}

TUTTI_INLINE void save_schedulers(const State& state, const Run& run, Archive& archive) {
  archive.put("initial_lrs", base_learning_rates(state));
  archive.put("max_duration", to_string(state.max_duration));
  archive.put("scale_schedule_ratio", run.scale_schedule_ratio);
  archive.put("schedule_ahead", run.schedule_ahead);
  save_timestamp(run.scheduled_at, archive.child("stepped_at"));
}

// An optimizer's archive without what it keeps of its parameters.
TUTTI_INLINE Archive without_states(const Archive& optimizer) {
  Archive out = optimizer;
  out.erase("state");
  if (optimizer.contains("state")) {
    out.child("state");
  }
  if (optimizer.contains("own")) {
    for (const std::string& name : optimizer.child("own").names()) {
      if (name.starts_with("param")) {
        out.erase("own/" + name);
      }
    }
  }
  return out;
}

TUTTI_INLINE void load_optimizers(State& state, const Archive& optimizers, bool parts) {
  TUTTI_CHECK(optimizers.size() == state.optimizers.size(), "the checkpoint has ",
              optimizers.size(), " optimizers, this run has ", state.optimizers.size());
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    try {
      Archive saved = optimizers.child(std::to_string(i));
      if (state.spread != nullptr) {
        make_part(saved, state);
      }
      checkpoint::load_optimizer(*state.optimizers[i], parts ? without_states(saved) : saved,
                                 state.model.get());
    } catch (const c10::Error& error) {
      TUTTI_CHECK(
          false, error.what_without_backtrace(),
          "\nTo go on with the weights and a fresh optimizer, put \"state/optimizers\" into "
          "load_ignore_keys.");
    }
  }
}

TUTTI_INLINE std::string listed(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) {
    out += (out.empty() ? "" : ", ") + c10::str(value);
  }
  return out;
}

// The learning rates go on as they were saved. They are computed anew when the run's length has
// changed or the next batch is to have its own for the first time, and are this program's when the
// checkpoint's were left out, or its optimizers.
TUTTI_INLINE void load_schedulers(State& state, Run& run, const Archive& archive,
                                  const std::vector<double>& own, RunLoadReport& report) {
  const bool fresh = !archive.contains("optimizers");  // with the rates of this program
  bool again = fresh;
  if (archive.contains("schedulers")) {
    const Archive& saved = archive.child("schedulers");
    state.initial_lrs = fresh ? own : saved.get<std::vector<double>>("initial_lrs");
    TUTTI_CHECK(state.initial_lrs.size() == own.size(), "the checkpoint has ",
                state.initial_lrs.size(), " learning rates, this run has ", own.size(),
                "; put \"state/schedulers\" into load_ignore_keys to train with this program's");
    run.scheduled_at = load_timestamp(saved.child("stepped_at"));
    const bool catches_up = run.schedule_ahead && run.step_schedule_every_batch &&
                            !saved.get_or("schedule_ahead", false);
    if (catches_up) {
      run.scheduled_at = state.timestamp;
    }
    again = again || catches_up ||
            saved.get<std::string>("max_duration") != to_string(state.max_duration) ||
            saved.get<double>("scale_schedule_ratio") != run.scale_schedule_ratio;
    report.restored.emplace_back("schedulers");
    if (state.initial_lrs != own) {
      report.notes.push_back("the learning rate is the checkpoint's, " + listed(state.initial_lrs) +
                             ", not this program's, " + listed(own) +
                             "; to train with this program's, put \"state/schedulers\" into "
                             "load_ignore_keys");
    }
  } else {
    state.initial_lrs = own;
    run.scheduled_at = state.timestamp;
    run.set_learning_rates(state, 1.0);
    again = true;
    report.afresh.emplace_back("schedulers");
  }
  if (again && run.has_schedule(state) && state.max_duration) {
    run.step_schedule(state, run.scheduled_at);
  }
}

// What State::metric() tells of an evaluation, and of which batch that is.
TUTTI_INLINE void save_values(const MetricValues& values, Archive& out) {
  std::vector<std::string> names;
  std::vector<double> numbers;
  for (const auto& [name, value] : values) {
    names.push_back(name);
    numbers.push_back(value);
  }
  out.put("names", names);
  out.put("values", numbers);
}

TUTTI_INLINE void load_values(const Archive& saved, MetricValues& values) {
  const auto names = saved.get<std::vector<std::string>>("names");
  const auto numbers = saved.get<std::vector<double>>("values");
  for (std::size_t i = 0; i < std::min(names.size(), numbers.size()); ++i) {
    values[names[i]] = numbers[i];
  }
}

TUTTI_INLINE void save_values(const State& state, const EvalSet& set, Archive& archive) {
  const auto values = state.eval_metric_values.find(set.label);
  if (values == state.eval_metric_values.end()) {
    return;
  }
  Archive& out = archive.child("eval_metric_values").child(set.label);
  out.put("batch", set.evaluated_at);
  save_values(values->second, out);
}

TUTTI_INLINE void load_values(State& state, EvalSet& set, const Archive& archive) {
  const std::string path = "eval_metric_values/" + set.label;
  if (!archive.contains(path)) {
    return;
  }
  const Archive& saved = archive.child(path);
  set.evaluated_at = saved.get<std::int64_t>("batch");
  load_values(saved, state.eval_metric_values[set.label]);
}

// Examples of all ranks in a batch, as the loaders make them; 0: unknown.
TUTTI_INLINE std::int64_t global_batch_size(const State& state, const Run& run) {
  const std::int64_t all = run.train ? run.train.loader.global_batch_size() : 0;
  return all > 0 || !run.train ? all : run.train.loader.batch_size() * dist::data_ranks(state);
}

TUTTI_INLINE void save_global_batch(const State& state, const Run& run, Archive& archive) {
  const std::int64_t size = global_batch_size(state, run);
  if (size > 0) {
    archive.put("global_batch/size", size);
    archive.put("global_batch/ranks", std::int64_t{dist::data_ranks(state)});
    archive.put("global_batch/given", run.train.loader.given_batch_size());
  }
  if (state.train_dataloader_len >= 0) {
    archive.put("train_dataloader_len", state.train_dataloader_len);
  }
}

// Throws c10::ValueError: ranks cannot share the batches of a checkpoint. also: one more thing that
// can be done about it; now: what they have together as it is.
TUTTI_INLINE void refuse_to_share(std::int64_t size, std::int64_t ranks, std::int64_t now,
                                  const std::string& refusal, std::string_view also = "") {
  std::int64_t fewer = std::min(ranks, size);
  std::int64_t more = ranks;
  for (; size % fewer != 0; --fewer) {
  }
  for (; more < size && size % more != 0; ++more) {
  }
  TUTTI_CHECK_VALUE(false, refusal, "; take ", fewer,
                    more <= size ? " or " + std::to_string(more) : std::string(), " ranks", also,
                    ", or put \"state/global_batch\" into load_ignore_keys to go on with "
                    "batches of ",
                    now);
}

// Other ranks share the batches that those before have shared, so that steps are of as many
// examples, and the epoch goes on with those that it has not had.
TUTTI_INLINE void keep_global_batch(State& state, Run& run, const Archive& archive,
                                    RunLoadReport& report) {
  const std::int64_t ranks = dist::data_ranks(state);
  const auto size = archive.get<std::int64_t>("global_batch/size");
  const auto before = archive.get<std::int64_t>("global_batch/ranks");
  const auto given = archive.get_or<std::int64_t>("global_batch/given", 0);  // by the program
  const std::int64_t now = global_batch_size(state, run);
  const std::int64_t mine = run.train ? run.train.loader.batch_size() : 0;
  const bool chosen = ranks == before && mine != given;  // the program has other batches now
  if (mine == 0 || chosen || now == size || !run.train.loader.set_batch_size(mine)) {
    return;  // or it cannot make others
  }
  std::string each = std::to_string(size / ranks) + " examples";
  if (size % ranks == 0) {
    run.train.loader.set_batch_size(size / ranks);
  } else {
    const std::string refusal =
        c10::str("the checkpoint is of ", before, before == 1 ? " rank" : " ranks",
                 " with batches of ", size, " examples", before == 1 ? "" : " together", ", which ",
                 ranks, " ranks cannot share");
    if (size < ranks) {
      refuse_to_share(size, ranks, now, refusal);
    } else if (!run.uneven_ranks) {
      refuse_to_share(size, ranks, now, refusal + " equally",
                      ", set uneven_ranks = true, with which some have one example more");
    } else if (!run.train.loader.set_global_batch_size(size)) {
      refuse_to_share(size, ranks, now,
                      c10::str(refusal, " equally, and ", run.train.loader.name(),
                               " cannot give some one more, as DataLoader, TensorLoader and "
                               "ImageLoader can"));
    }
    each += c10::str(", the first ", size % ranks, " ranks of one more,");
  }
  state.train_dataloader_len = length_of(run.train, run.train_subset);
  const std::string why =
      ranks == before
          ? c10::str("the checkpoint's ", ranks, " ranks had shared the batches of others")
          : c10::str("the checkpoint is of ", before, before == 1 ? " rank" : " ranks",
                     ", and this run has ", ranks);
  report.notes.push_back(c10::str(why, ", so each has batches of ", each, " in place of ", mine,
                                  ": together ", size, " as before"));
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE std::string other_epochs(const State& state, const Run& run) {
  const Timestamp& now = state.timestamp;
  const std::int64_t length = state.train_dataloader_len;
  if (length <= 0 || now.batch_in_epoch != 0 || now.batch == now.epoch * length ||
      !run.has_schedule(state) || state.max_duration.unit() != TimeUnit::epoch) {
    return {};
  }
  return "the run has " + std::to_string(now.batch) + " batches behind it in " +
         std::to_string(now.epoch) + " epochs, and an epoch has " + std::to_string(length) +
         " now; schedules count an epoch as so many batches, so the learning rate is that of "
         "batch " +
         std::to_string(now.batch) + " of " + std::to_string(state.max_duration.count() * length);
}

}  // namespace tutti::train

namespace tutti::train::detail {

// An epoch goes on at the batch of the saved number, so with batches of another size elsewhere.
TUTTI_INLINE void note_other_batches(const State& state, const Run& run, std::int64_t length_before,
                                     RunLoadReport& report) {
  const Timestamp& now = state.timestamp;
  const std::int64_t length = state.train_dataloader_len;
  if (std::string text = other_epochs(state, run); !text.empty()) {
    report.notes.push_back(std::move(text));
  }
  if (!run.train || run.train.hooks.batch_transform || run.train.hooks.num_samples) {
    return;  // examples are counted in another way than the loader's
  }
  const std::int64_t size = global_batch_size(state, run);
  if (length > 0 && length_before > 0 && length != length_before && now.batch_in_epoch > 0 &&
      now.sample_in_epoch == now.batch_in_epoch * size) {
    report.notes.push_back("the checkpoint is after batch " + std::to_string(now.batch_in_epoch) +
                           " of an epoch that had " + std::to_string(length_before) + " and has " +
                           std::to_string(length) + " now, so the data are others; " +
                           (now.batch_in_epoch < length
                                ? "the epoch goes on behind as many batches of these"
                                : "nothing is left of this epoch, and the next begins") +
                           ". Resume from the end of an epoch, or give the data that the run had");
  }
  if (size == 0 || now.batch_in_epoch == 0 || now.sample_in_epoch % now.batch_in_epoch != 0 ||
      now.sample_in_epoch == now.batch_in_epoch * size ||
      now.sample_in_epoch >= run.train.loader.dataset_size()) {
    return;
  }
  report.notes.push_back(
      "the checkpoint is inside an epoch, after " + std::to_string(now.batch_in_epoch) +
      " batches of together " + std::to_string(now.sample_in_epoch) +
      " examples, and batches have " + std::to_string(size) +
      " now, so this epoch goes on at example " + std::to_string(now.batch_in_epoch * size) +
      " of its order; to see each once, resume with the same batch size and number of processes, "
      "or from the end of an epoch");
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE void save_run(const State& state, const Run& run, const checkpoint::Saver* saver,
                           Archive& archive, bool metrics, checkpoint::PartPlaces* parts) {
  save_timestamp(state.timestamp, archive.child("timestamp"));
  if (run.batches_from_outside > 0) {
    archive.put("batches_from_outside", run.batches_from_outside);
  }
  archive.put("rank_zero_seed", state.rank_zero_seed);
  archive.put("device_train_microbatch_size", state.device_train_microbatch_size);
  detail::save_global_batch(state, run, archive);
  detail::save_schedulers(state, run, archive.child("schedulers"));
  if (!state.optimizer_names.empty()) {
    archive.put("optimizer_names", state.optimizer_names);
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    Archive& saved = archive.child("optimizers").child(std::to_string(i));
    checkpoint::PartPlaces of_state;
    if (state.sharding != nullptr && parts != nullptr) {
      sharding_support().save_parts(*state.optimizers[i], state, saved, of_state);
    } else if (state.sharding != nullptr) {
      sharding_support().save(*state.optimizers[i], state, saved);
    } else {
      checkpoint::save_optimizer(*state.optimizers[i], saved, state.model.get());
    }
    if (state.spread != nullptr && parts != nullptr) {
      detail::note_parts(saved, state, of_state);
    } else if (state.spread != nullptr) {
      detail::make_whole(saved, state);
    }
    if (parts != nullptr) {
      for (auto& [path, places] : of_state) {
        (*parts)["state/" + path] = std::move(places);
      }
    }
  }
  if (run.scaler) {
    run.scaler->save(archive.child("scaler"));
  }
  if (saver != nullptr) {
    saver->save(archive.child("saver"));
  }
  if (run.best) {
    run.best->save(archive.child("best"));
  }
  for (const EvalSet& set : run.evals) {
    if (set.postponed_at == state.timestamp.batch) {
      archive.child("postponed_evaluations").put(set.label, set.postponed_at);
    }
  }
  if (!state.train_metric_values.empty()) {
    detail::save_values(state.train_metric_values, archive.child("train_metric_values"));
  }
  for (const EvalSet& set : run.evals) {
    detail::save_values(state, set, archive);
  }
  if (metrics) {
    run.train_metrics.save(state, state.train_metric_values, archive.child("train_metrics"));
    for (const EvalSet& set : run.evals) {
      const auto values = state.eval_metric_values.find(set.label);
      set.metrics.save(state,
                       values == state.eval_metric_values.end() ? MetricValues{} : values->second,
                       archive.child("eval_metrics").child(set.label));
    }
  }
}

TUTTI_INLINE void load_run(State& state, Run& run, checkpoint::Saver* saver, const Archive& archive,
                           RunLoadReport& report, bool parts) {
  const auto has = [&](const char* part) {
    (archive.contains(part) ? report.restored : report.afresh).emplace_back(part);
    return archive.contains(part);
  };
  const std::vector<double> own_lrs = detail::base_learning_rates(state);
  if (has("optimizers")) {
    const auto names = archive.get_or("optimizer_names", std::vector<std::string>());
    TUTTI_CHECK(names == state.optimizer_names || names.empty() || state.optimizer_names.empty(),
                "the checkpoint's optimizers are ", c10::Join(", ", names), ", this run's ",
                c10::Join(", ", state.optimizer_names),
                "; name them alike and in the same order, or put \"state/optimizers\" into "
                "load_ignore_keys");
    detail::load_optimizers(state, archive.child("optimizers"), parts);
    if (parts) {
      run.load_parts = [&state, saved = archive.child("optimizers")] {
        for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
          sharding_support().load_parts(*state.optimizers[i], state,
                                        saved.child(std::to_string(i)));
        }
      };
    }
  }
  if (has("timestamp")) {
    state.timestamp = load_timestamp(archive.child("timestamp"));
    state.previous_timestamp = state.timestamp;
    run.batches_from_outside = archive.get_or<std::int64_t>("batches_from_outside", 0);
    if (archive.contains("global_batch/size")) {
      detail::keep_global_batch(state, run, archive, report);
    }
    detail::note_other_batches(state, run, archive.get_or<std::int64_t>("train_dataloader_len", -1),
                               report);
  }
  if (has("rank_zero_seed")) {
    state.rank_zero_seed = archive.get<std::uint64_t>("rank_zero_seed");
    state.seed = state.rank_zero_seed + static_cast<std::uint64_t>(dist::data_rank(state));
  }
  if (state.auto_microbatching && archive.contains("device_train_microbatch_size")) {
    state.device_train_microbatch_size =  // found before; it only shrinks from here
        archive.get<std::int64_t>("device_train_microbatch_size");
  }
  detail::load_schedulers(state, run, archive, own_lrs, report);
  if (run.scaler && has("scaler")) {
    run.scaler->load(archive.child("scaler"));
  }
  if (saver != nullptr && archive.contains("saver")) {
    saver->load(archive.child("saver"));
  }
  if (run.best && has("best")) {
    run.best->load(archive.child("best"));
  }
  if (archive.contains("train_metric_values")) {
    detail::load_values(archive.child("train_metric_values"), state.train_metric_values);
    run.train_metrics.take_values();
  }
  if (archive.contains("train_metrics")) {
    run.train_metrics.load(state, archive.child("train_metrics"), state.train_metric_values);
    report.restored.emplace_back("train_metrics");
  }
  for (EvalSet& set : run.evals) {
    detail::load_values(state, set, archive);
    set.postponed_at = archive.get_or<std::int64_t>("postponed_evaluations/" + set.label, -1);
    const std::string path = "eval_metrics/" + set.label;
    if (archive.contains(path)) {
      MetricValues values;
      set.metrics.load(state, archive.child(path), values);
      if (!values.empty()) {  // else it had not been evaluated yet
        state.eval_metric_values[set.label] = std::move(values);
      }
      report.restored.push_back(path);
    }
  }
}

}  // namespace tutti::train
