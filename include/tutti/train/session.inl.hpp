// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/session.hpp>

namespace tutti::train {

TUTTI_INLINE Session::Session(TrainerOptions&& options) : options_(std::move(options)) {}
TUTTI_INLINE Session::~Session() = default;

TUTTI_INLINE void Session::fit(FitOptions&& options) {
  check_open();
  if (!prepare_fit(options)) {
    evaluate_last();
    return;
  }
  TUTTI_CHECK(!std::exchange(fits_, true), "fit: this trainer is in fit() already");
  guard([&] {
    state_.dataloader_label = "train";
    state_.dataloader_len = state_.train_dataloader_len;
    state_.train_transforms = run_.train.loader.transforms();
    const SignalScope signals(run_.heeds_signals, options_.replace_signal_handlers);
    keep_config(options_, state_);
    sanity_eval();
    const AnomalyScope anomalies(run_.detect_anomaly);
    train();
    finish_fit();
  });
  fits_ = false;
  if (run_.stop_signal != 0) {
    say_stopped(state_, run_.stop_signal);
    requeue(options_, state_, run_.stop_signal);
    if (options_.on_signal == OnSignal::exit) {
      close();
      std::exit(128 + run_.stop_signal);
    }
  }
}

TUTTI_INLINE void Session::finish_fit() {
  run_.finish();
  zero_gradients(state_);
  report_result(options_, state_, run_);
  restore_best(state_, run_);
}

TUTTI_INLINE void Session::prepare_steps() {
  check_open();
  TUTTI_CHECK(!fits_, "step: fit() is running; call step() before or after it");
  if (run_.checkpoints) {
    run_.checkpoints->check_folders();
  }
  if (run_.has_schedule(state_) && !schedule_applied_) {
    TUTTI_CHECK(state_.max_duration,
                "step: there is a schedule, which needs a max_duration; set "
                "TrainerOptions::max_duration");
    apply_schedule();
  }
  fits_ = true;
  run_.stop_signal = 0;
  state_.dataloader_label = "train";
  state_.dataloader_len = -1;
  state_.train_transforms = nullptr;
}

// As eval() would, with nothing left of it but what policies have seen.
TUTTI_INLINE void Session::sanity_eval() {
  if (options_.sanity_eval == 0 || state_.timestamp.batch > 0) {
    return;
  }
  const Untouched untouched(state_, run_, engine_->states(), options_.sanity_eval);
  evaluate(run_.evals);
}

TUTTI_INLINE void Session::train() {
  try {
#if defined(TUTTI_SEPARATE_COMPILATION)
    Loop<AnyEngine>(*engine_, state_, run_)();
#else
    engine_->train(state_, run_);
#endif
  } catch (c10::Error& error) {
    add_place(error, state_);
    throw;
  }
}

TUTTI_INLINE void Session::eval() {
  eval_sets(run_.evals);
}

TUTTI_INLINE void Session::eval(std::vector<Evaluator>&& evaluators) {
  check_open();
  std::vector<EvalSet> sets = make_sets(std::move(evaluators));
  eval_sets(sets);
}

TUTTI_INLINE void Session::eval(std::vector<Evaluator>&& evaluators, const std::string& weights) {
  check_open();
  const bool own = evaluators.empty();
  std::vector<EvalSet> sets = make_sets(std::move(evaluators));
  check_eval_sets(state_, own ? run_.evals : sets);
  TUTTI_CHECK_VALUE(!weights.empty(),
                    "eval: the weights are \"\", expected \"best\" or a checkpoint's path");
  const PolicyStates policies = engine_->states();
  check_whole(state_, "eval with other weights");
  const KeptWeights kept(policies, state_);
  const optim::AveragesInUse averages(state_.optimizers);  // else they would be lost
  if (weights == "best") {
    give_best();
  } else {
    if (!run_.checkpoints) {
      open_checkpoints();
    }
    run_.checkpoints->load_weights(weights);
  }
  eval_sets(own ? run_.evals : sets);
  kept.give_back();
}

TUTTI_INLINE std::string Session::load_best() {
  check_open();
  check_whole(state_, "load_best");
  return give_best();
}

// From memory, else from the best checkpoint, whose path it returns.
TUTTI_INLINE std::string Session::give_best() {
  if (run_.best && run_.best->best()) {
    run_.best->restore(state_);
    return {};
  }
  const std::string path = best_checkpoint();
  TUTTI_CHECK(!path.empty(),
              "there are no best weights: no evaluation during fit() has been kept as the best; "
              "set TrainerOptions::restore_best, or give the recipe a CheckpointSaver with a "
              "monitor, and train");
  run_.checkpoints->load_weights(path);
  return path;
}

TUTTI_INLINE void Session::eval_sets(std::vector<EvalSet>& sets) {
  check_open();
  check_eval_sets(state_, sets);
  guard([&] { evaluate(sets); });
}

// What a complete run would know of its last weights, where its checkpoint was written before that.
TUTTI_INLINE void Session::evaluate_last() {
  std::vector<EvalSet> sets;
  std::vector<EvalSet*> places;
  for (EvalSet& set : run_.evals) {
    if (set.when && set.evaluated_at != state_.timestamp.batch) {
      sets.push_back(std::move(set));
      places.push_back(&set);
    }
  }
  if (!sets.empty()) {
    eval_sets(sets);
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    *places[i] = std::move(sets[i]);
  }
}

TUTTI_INLINE void Session::evaluate(std::vector<EvalSet>& sets) {
#if defined(TUTTI_SEPARATE_COMPILATION)
  evaluate_standalone(*engine_, state_, run_, sets);
#else
  engine_->evaluate(state_, run_, sets);
#endif
}

TUTTI_INLINE std::vector<Outputs> Session::predict(DataSpec& data, std::int64_t subset_num_batches,
                                                   bool return_outputs) {
  check_open();
  TUTTI_CHECK_VALUE(data, "predict: there is no data; pass a loader");
  TUTTI_CHECK_VALUE(subset_num_batches >= -1, "predict: subset_num_batches is ", subset_num_batches,
                    ", expected -1 (all) or a number of batches");
  std::vector<Outputs> outputs;
  guard([&] {
#if defined(TUTTI_SEPARATE_COMPILATION)
    outputs = train::predict(*engine_, state_, data, subset_num_batches, return_outputs);
#else
    outputs = engine_->predict(state_, data, subset_num_batches, return_outputs);
#endif
  });
  return outputs;
}

TUTTI_INLINE void Session::save_checkpoint(const std::string& path, bool weights_only) {
  if (!run_.checkpoints) {
    open_checkpoints();
  }
  run_.checkpoints->save(path, weights_only);
}

TUTTI_INLINE void Session::close() {
  run_.close(*engine_, state_);
}

TUTTI_INLINE std::string Session::last_checkpoint() const {
  return run_.last_checkpoint();
}

TUTTI_INLINE std::string Session::best_checkpoint() const {
  return run_.checkpoints ? run_.checkpoints->best() : std::string();
}

TUTTI_INLINE std::optional<BestValue> Session::best() const {
  return run_.best ? run_.best->best() : std::nullopt;
}

TUTTI_INLINE void Session::check_open() const {
  TUTTI_CHECK(!engine_->closed(),
              "this trainer has been closed, by close() or after an exception; "
              "make a new one, with load_path set to its last checkpoint to go on from there");
}

TUTTI_INLINE void Session::check_apart(const FindLrOptions& options) const {
  check_open();
  TUTTI_CHECK(!fits_, "find_lr: fit() is running, or steps are being made; call it before");
  check_find_lr(options, state_, run_, !is_sharded(options_.sharding, dist::data_ranks(state_)));
}

TUTTI_INLINE void Session::fail(std::exception_ptr error) {
  tutti::detail::drop_stack_trace(error);
  if (run_.checkpoints) {
    run_.checkpoints->abandon();
  }
  try {
    engine_->close(state_);
  } catch (const std::exception& second) {
    TORCH_WARN("closing the trainer after an exception failed as well: ", second.what());
  }
  std::rethrow_exception(error);
}

TUTTI_INLINE void Session::construct(AnyModel model) {
  TUTTI_CHECK(model, "the trainer was given no model");
  check_options(options_);
  join_world();
  check_common_options(options_, *state_.communicator);
  warn_of_other_algorithms(engine_->constants(/*algorithms=*/true), *state_.communicator);
  state_.spread = model.module() ? models::spread_of(*model.module()).get() : nullptr;
  if (options_.dry_run > 0) {
    make_dry(options_, state_, scratch_);
  }
  set_num_threads(options_.num_threads);
  cpu_memory_.used = options_.cache_cpu_memory && state_.device.is_cpu();
  const cpu::Cache memory(cpu_memory_.used);
  check_precision(options_.precision, state_.device);
  if (options_.cuda_graphs) {
    run_.graphs = make_graphs(options_.cuda_graphs, engine_->why_no_graphs(), state_);
  }
  if (options_.deterministic_mode) {
    configure_deterministic_mode(options_.deterministic_mode.warns);
  }
  set_cuda_arithmetic(options_.tf32, options_.cudnn_benchmark);
  state_.rank_zero_seed = agree_on_seed(options_.seed, *state_.communicator);
  state_.seed = state_.rank_zero_seed + static_cast<std::uint64_t>(dist::data_rank(state_));
  seed_all(state_.seed);
  state_.precision = options_.precision;
  state_.task = std::move(model);
  state_.model = state_.task.module();
  TUTTI_CHECK(state_.model,
              "the model's module() is null; return the torch::nn::Module that "
              "holds its parameters");
  const auto tape = put_off(*state_.model, options_.sharding, state_);
  {
    const tutti::detail::InitTape::Recording recording(tape);
    state_.model->to(state_.device);
    if (state_.precision == Precision::bf16_true) {
      cast_floats(*state_.model, at::kBFloat16);
    }
  }
  state_.run_name = resolve_run_name(options_.run_name, *state_.communicator);
  state_.run_folder = resolve_run_folder(options_, state_);
  state_.autoresume = options_.autoresume;
  make_optimizer();
  check_spread(*engine_, options_, state_);
  state_.logger.add(constants_);
  engine_->prepare(state_);
  {
    const tutti::detail::InitTape::Recording recording(tape);
    engine_->fire<Init>(state_);
    if (state_.precision == Precision::bf16_true) {
      cast_floats(*state_.model, at::kBFloat16);  // what surgery has added
    }
  }
  log_hyperparameters(state_, options_, engine_->constants(/*algorithms=*/false));
  prepare_run();
  engine_->fire<BeforeLoad>(state_);
  load();
  engine_->fire<AfterLoad>(state_);
  seed_all(state_.seed);
  run_.data_parallel = options_.data_parallel;
  if (!run_.turns.empty()) {
    run_.fold_into_optimizer = false;                  // an average is of all weights
    run_.data_parallel.find_unused_parameters = true;  // those of the others
  }
  begin_parallel(*engine_, options_, state_, run_);
  run_.threads = choose_threads(options_.num_threads, state_, engine_->states());
}

TUTTI_INLINE void Session::join_world() {
  const dist::Environment here = dist::here();
  state_.device = resolve_device(options_.device, here.local_rank);
  const auto timeout = std::chrono::duration<double>(options_.dist_timeout);
  state_.communicator = dist::join(here, state_.device.type(),
                                   std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
  state_.rank = state_.communicator->rank();
  state_.world_size = state_.communicator->size();
}

TUTTI_INLINE void Session::make_optimizer() {
  if (!options_.optimizers.empty()) {
    check_several(options_, engine_->step_taker());
    run_.turns = begin_turns(options_.optimizers, state_);
    run_.graphs.reset();
    return;
  }
  if (!options_.optimizer) {
    options_.optimizer = DecoupledSGDW{.lr = 0.1};
    optimizer_is_default_ = true;
  }
  state_.optimizers = {build_optimizer(options_.optimizer, *state_.model)};
  run_.frozen = frozen_parameters(*state_.model);
  if (optim::calls_closure(*state_.optimizers.front())) {
    check_closure(*state_.optimizers.front(), options_, engine_->step_taker());
    run_.graphs.reset();
  }
}

// What the loop needs: metrics, data, schedule, scaler, where checkpoints go.
TUTTI_INLINE void Session::prepare_run() {
  run_.train_metrics = MetricSet(state_.task.metrics(true), {}, "metrics/train/");
  run_.train = shard(options_.train);
  warn_of_subset(state_, "the training loader", run_.train, options_.train_subset_num_batches);
  run_.evals = make_sets(options_.eval);
  set_loop(run_, options_);
  set_microbatching(state_, run_, options_);
  set_length(state_, run_, options_.max_duration, options_.scale_schedule_ratio);
  state_.min_duration = options_.min_duration;
  const bool has_schedule = options_.schedule || run_.has_schedule(state_);
  TUTTI_CHECK_VALUE(options_.scale_schedule_ratio == 1 || has_schedule, "scale_schedule_ratio is ",
                    options_.scale_schedule_ratio,
                    ", but there is no schedule for it to scale; set TrainerOptions::schedule");
  if (has_schedule) {
    set_schedule(options_.schedule, options_.scale_schedule_ratio);
  }
  set_precision(state_, run_, options_.precision);
  run_.best = keep_best(options_, engine_->states(), state_);
  if (engine_->has_savers() || !options_.save_folder.empty() || !options_.load_path.empty()) {
    open_checkpoints();
  }
}

TUTTI_INLINE void Session::open_checkpoints() {
  auto checkpoints = std::make_shared<RunCheckpoints>(state_, run_);
  checkpoints->open(options_, engine_->states());
  run_.checkpoints = std::move(checkpoints);
}

TUTTI_INLINE void Session::load() {
  check_autoresume(options_);
  if (run_.checkpoints) {
    load_report_ = run_.checkpoints->load(options_);
  }
}

// Deals a loader's examples to the ranks.
TUTTI_INLINE DataSpec Session::shard(DataSpec data) const {
  const int ranks = dist::data_ranks(state_);
  if (data && ranks > 1 && !data.loader.shard(dist::data_rank(state_), ranks)) {
    TORCH_WARN_ONCE("a loader has no shard(rank, world_size), so all ", ranks,
                    " ranks read the same batches unless it deals them out itself");
  }
  return data;
}

TUTTI_INLINE void Session::set_schedule(Schedule schedule, double ratio) {
  if (state_.initial_lrs.empty()) {
    run_.bind_schedule(state_);
  }
  for (Turn& turn : run_.turns) {
    turn.schedule = turn.own_schedule ? turn.schedule : schedule;
  }
  run_.schedule = run_.turns.empty() ? std::move(schedule) : Schedule();
  run_.scale_schedule_ratio = ratio;
  run_.scheduled_at = state_.timestamp;
  schedule_applied_ = false;
  if (state_.max_duration && run_.train) {  // else when the length of an epoch is known, too
    apply_schedule();
  }
}

// Once when a schedule is bound and when the run's length changes; else the loop does it, so a
// resumed run keeps the learning rate that it was saved with.
TUTTI_INLINE void Session::apply_schedule() {
  run_.warn_of_schedules(state_);
  run_.step_schedule(state_, run_.scheduled_at);
  schedule_applied_ = true;
}

TUTTI_INLINE std::vector<EvalSet> Session::make_sets(std::vector<Evaluator> evaluators) {
  std::vector<EvalSet> sets;
  for (auto& evaluator : evaluators) {
    evaluator.data = shard(std::move(evaluator.data));
    const std::int64_t subset = evaluator.subset_num_batches >= 0
                                    ? evaluator.subset_num_batches
                                    : options_.eval_subset_num_batches;
    add_set(sets, std::move(evaluator), state_.task.metrics(false), options_);
    warn_of_subset(state_, "the evaluation set \"" + sets.back().label + "\"", sets.back().data,
                   subset);
  }
  return sets;
}

// Takes over what the options change, once all of them have been checked. False when an
// automatically resumed run is complete.
TUTTI_INLINE bool Session::prepare_fit(FitOptions& options) {
  if (options_.dry_run > 0) {
    options.duration = Time::duration(0);  // up to max_duration, which is the dry run's
    options.scale_schedule_ratio = 1;
  }
  check_common_options(options, *state_.communicator);
  std::vector<EvalSet> evals = make_sets(std::move(options.eval));
  options.train = shard(std::move(options.train));
  const FitPlan plan = plan_fit(state_, run_, options);
  check_steps(state_, options);
  if (options.train_subset_num_batches) {
    warn_of_subset(state_, "the training loader", options.train ? options.train : run_.train,
                   subset_of(run_, options));
  }
  warn_of_untrained(state_, run_);
  const std::vector<EvalSet>& watched = evals.empty() ? run_.evals : evals;
  check_best(run_, watched);
  TUTTI_CHECK_VALUE(options_.sanity_eval == 0 || !watched.empty(), "fit: sanity_eval is ",
                    options_.sanity_eval,
                    ", but there is no evaluation set; give it one in TrainerOptions::eval");
  const bool resumed = options_.autoresume && run_.checkpoints->continues();
  if (!plan.complete || !resumed) {
    check_something_is_left(state_, plan);
    if (!options_.allow_idle_policies) {
      engine_->check_idle(!evals.empty() || !run_.evals.empty(),
                          static_cast<bool>(run_.iteration_length));
    }
  }
  const bool stays = schedule_applied_ && is_same(state_.max_duration, plan.max_duration) &&
                     !(options.reset_time && run_.schedule_ahead);
  const bool new_precision = options.precision && *options.precision != state_.precision;
  const bool other_data = static_cast<bool>(options.train);
  take_over(state_, run_, options, std::move(evals), plan);
  if (new_precision && state_.sharding != nullptr) {
    warn_of_autocast(options_.sharding, state_);
  }
  if (options.schedule) {
    set_schedule(std::move(options.schedule), options.scale_schedule_ratio);
  } else if (run_.has_schedule(state_) && !stays) {
    apply_schedule();
  }
  if (const std::string text = other_data ? other_epochs(state_, run_) : std::string();
      state_.rank == 0 && !text.empty()) {
    TORCH_WARN("fit: ", text, "; set reset_time to begin the schedule anew");
  }
  if (std::exchange(optimizer_is_default_, false)) {
    TORCH_WARN("no optimizer was given; training with DecoupledSGDW{.lr = 0.1}");
  }
  if (plan.complete) {
    TORCH_WARN("fit: the run that was resumed is complete; there is nothing left to train");
    run_.finish();
  } else if (run_.checkpoints) {
    run_.checkpoints->check_folders();
  }
  return !plan.complete;
}

}  // namespace tutti::train
