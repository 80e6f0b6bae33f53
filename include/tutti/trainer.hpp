// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

// First: what a compiler says of a recipe begins with the way to these, which is short then.
#include <tutti/core/check.hpp>
#include <tutti/core/recipe.hpp>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/loggers/console.hpp>
#include <tutti/loggers/progress_bar.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/cpu_memory.hpp>
#include <tutti/train/fit_plan.hpp>
#include <tutti/train/idle.hpp>
#include <tutti/train/loop.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/reproducibility.hpp>
#include <tutti/train/setup.hpp>
#include <tutti/version.hpp>

namespace tutti {

namespace detail {

template <class P, class... Ps>
using Unless = std::conditional_t<(means<P, Ps> || ...), types<>, types<Switch<P>>>;

template <class... Ps, class... Qs, class... Rs>
Engine<Ps..., Qs..., Rs...> join(types<Ps...>, types<Qs...>, types<Rs...>);

// The recipe's policies and the loggers that options can turn on.
template <class... Ps>
using Joined = decltype(join(types<Bare<Ps>...>{}, Unless<ProgressBar, Ps...>{},
                             Unless<ConsoleLogger, Ps...>{}));
template <class... Ps>
using EngineFor =
    typename decltype(brought_engine<Joined<Ps...>>(typename Joined<Ps...>::policies{}))::type;

}  // namespace detail

/// Trains, evaluates and predicts with a model and a recipe of policies.
///
///     tutti::Trainer<tutti::MixUp, tutti::BlurPool> trainer{model, {.train = loader, ...}};
///     trainer.fit();
///
/// `Trainer{model, options, MixUp{.alpha = 0.3}, BlurPool{}}` gives hyperparameters. A call that is
/// refused for its arguments changes nothing, and the next may be right. After an exception out of
/// work that has begun, in fit(), eval() or predict(), every policy has been closed and the trainer
/// is of no further use; what was saved stays.
template <class... Policies>
class Trainer {
 public:
  using recipe = Recipe<Policies...>;
  static_assert(sizeof(detail::Checked<0, detail::Bare<Policies>...>) > 0);
  static_assert(((sizeof(detail::EntryCheck<Policies>) > 0) && ...));
  static_assert(recipe::valid);

  /// Sets everything up and fires Init, BeforeLoad and AfterLoad; loads a checkpoint in between
  /// when options say so.
  /// Throws c10::Error or std::invalid_argument, saying what was got and what is expected, when an
  /// option is wrong, a file cannot be loaded or a policy refuses the model.
  template <class M>
  Trainer(M model, TrainerOptions options, Policies... policies) requires(sizeof...(Policies) > 0)
      : options_(std::move(options)), engine_(make_engine(std::move(policies)...)) {
    static_assert(((sizeof(CheckFor<Policies, M>) > 0) && ...));
    guard([&] { construct(erase(std::move(model))); });
  }
  template <class M>
    requires(!std::is_same_v<M, Trainer> && (std::is_default_constructible_v<Policies> && ...))
  explicit Trainer(M model, TrainerOptions options = {})
      : options_(std::move(options)), engine_(make_engine(Policies{}...)) {
    static_assert(((sizeof(CheckFor<Policies, M>) > 0) && ...));
    guard([&] { construct(erase(std::move(model))); });
  }

  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Closes every policy; exceptions of theirs are swallowed, call close() to see them.
  ~Trainer() {
    try {
      close();
    } catch (const std::exception& error) {
      TORCH_WARN("closing the trainer failed: ", error.what());
    }
  }

  /// Trains up to max_duration, or for `options.duration` more. May be called again.
  /// SIGTERM and SIGINT end it after the batch, saved: it returns, and stop_signal() is not 0. See
  /// TrainerOptions::on_signal.
  /// Throws c10::Error when data or duration are missing, nothing is left to train or a checkpoint
  /// cannot be written, and whatever the model and the policies throw.
  void fit(FitOptions options = {}) {
    check_open();
    if (!prepare_fit(std::move(options))) {
      return;
    }
    guard([&] {
      begin_fit();
      const train::SignalScope signals(run_.heeds_signals, options_.replace_signal_handlers);
      train::keep_config(options_, state_);
      train::Loop<EngineType>(engine_, state_, run_)();
      run_.finish();
      train::zero_gradients(state_);
      train::report_result(options_, state_, run_);
    });
    if (run_.stop_signal != 0) {
      train::say_stopped(state_, run_.stop_signal);
      if (options_.on_signal == OnSignal::exit) {
        close();
        std::exit(128 + run_.stop_signal);
      }
    }
  }

  /// fit({.duration = duration}): `fit("2ep")`.
  void fit(Time duration) { fit(FitOptions{.duration = duration}); }

  /// Evaluates the options' sets, or the given ones: see State::metric.
  /// Throws c10::Error when there is no set, or one is empty.
  void eval() { eval_sets(run_.evals); }
  void eval(std::vector<Evaluator> evaluators) {
    check_open();
    std::vector<train::EvalSet> sets = make_sets(std::move(evaluators));
    eval_sets(sets);
  }

  /// Runs the model over a loader in evaluation mode.
  ///
  /// subset_num_batches: how many batches at most; -1: all.
  /// Returns the outputs of each batch on the host; nothing when return_outputs is false.
  /// Throws c10::ValueError for data that is none, and whatever the model and the policies throw.
  std::vector<Outputs> predict(DataSpec data, std::int64_t subset_num_batches = -1,
                               bool return_outputs = true) {
    check_open();
    TUTTI_CHECK_VALUE(data, "predict: there is no data; pass a loader");
    TUTTI_CHECK_VALUE(subset_num_batches >= -1, "predict: subset_num_batches is ",
                      subset_num_batches, ", expected -1 (all) or a number of batches");
    std::vector<Outputs> outputs;
    guard([&] {
      outputs = train::predict(engine_, state_, data, subset_num_batches, return_outputs);
    });
    return outputs;
  }

  /// The same with the outputs of all batches as one: each named tensor is joined along dimension
  /// 0, so that row i is what the model said of the loader's example i. `.tensor()` of it is the
  /// only tensor, or the logits. A tensor without dimensions gives one element a batch.
  ///
  ///     at::Tensor logits = trainer.predict_tensors(loader).tensor();   // [examples, classes]
  ///
  /// Throws c10::ValueError, besides, when the loader gives no batch, or when batches differ in a
  /// dimension behind the first, as texts of several lengths do, or in the names of their outputs;
  /// predict() takes those.
  Outputs predict_tensors(DataSpec data, std::int64_t subset_num_batches = -1) {
    return train::joined(predict(std::move(data), subset_num_batches));
  }

  /// Writes a checkpoint at `path` now. Rank 0 writes; all ranks call it.
  /// weights_only: the model alone. Returns the path.
  std::string save_checkpoint(const std::string& path, bool weights_only = false) {
    if (!run_.checkpoints) {
      open_checkpoints(CheckpointPath(path));
    }
    run_.checkpoints->save(path, weights_only);
    return path;
  }

  /// What was taken of the checkpoint that was loaded, and what not; `path` is empty when none was.
  [[nodiscard]] const RunLoadReport& load_report() const { return load_report_; }

  /// The newest checkpoint in save_folder that is this run's; empty: none.
  [[nodiscard]] std::string last_checkpoint() const { return run_.last_checkpoint(); }

  /// The signal that ended the last fit() before its time; 0: none.
  [[nodiscard]] int stop_signal() const { return run_.stop_signal; }

  /// Ends the run for every policy; nothing can be trained afterwards. Does nothing when called
  /// again. Throws the first exception of a policy's close(), after all have been closed.
  void close() { run_.close(engine_, state_); }

  /// What the loop and the policies share.
  [[nodiscard]] State& state() { return state_; }
  [[nodiscard]] const State& state() const { return state_; }

  /// The policy of type `P`, with its state.
  template <class P>
  [[nodiscard]] P& get() {
    return engine_.template get<P>();
  }

  /// Calls `f` with every policy.
  template <class F>
  void for_each_policy(F&& f) const {
    engine_.for_each(std::forward<F>(f));
  }

  /// What has been logged as a constant of the run, in order; a name's latest value.
  [[nodiscard]] const std::vector<std::pair<std::string, HyperparameterValue>>& hyperparameters()
      const {
    return constants_.values;
  }

 private:
  using EngineType = detail::EngineFor<Policies...>;

  template <class M>
  static constexpr bool is_model = std::is_convertible_v<M, AnyModel>;
  static constexpr bool has_mistakes = detail::mistakes<detail::Bare<Policies>...>.size > 0;

  // Named in the constructors: every call in between lengthens a compiler's message.
  template <class Policy, class M>
  using CheckFor = std::conditional_t<is_model<M> && !has_mistakes,
                                      ModelCheck<detail::Bare<Policy>, M>, types<>>;

  // The model behind one type, once the recipe's policies have seen what it is.
  template <class M>
  AnyModel erase(M model) const {
    static_assert(is_model<M>,
                  "tutti: this is no model; give it Outputs forward(const Batch&) and "
                  "Loss loss(const Outputs&, const Batch&), or wrap a network that classifies in "
                  "tutti::Classifier.");
    if constexpr (is_model<M> && !has_mistakes) {
      engine_.template validate_model<M>();
      train::warn_of_pairs<detail::Bare<Policies>...>();
      return AnyModel(std::move(model));
    } else {
      return {};
    }
  }

  EngineType make_engine(Policies... policies) {
    if constexpr (EngineType::recipe::size == 0) {
      return EngineType{};
    } else {
      return make_engine_from(typename EngineType::policies{}, policies...);
    }
  }

  // Each policy of the engine is either one of the recipe's or a logger that options turn on.
  template <class... All>
  EngineType make_engine_from(types<All...>, Policies&... policies) {
    return EngineType(pick<All>(policies...)...);
  }
  template <class P>
  P pick(Policies&... policies) {
    if constexpr (std::is_same_v<P, Switch<ProgressBar>>) {
      return P(ProgressBar{}, options_.progress_bar && !recipe::template has<ConsoleLogger>);
    } else if constexpr (std::is_same_v<P, Switch<ConsoleLogger>>) {
      return P(ConsoleLogger{.log_interval = options_.console_log_interval},
               options_.log_to_console);
    } else {
      return take<P>(policies...);
    }
  }
  template <class P, class Q, class... Qs>
  static P take(Q& first, Qs&... others) {
    if constexpr (std::is_same_v<P, detail::Bare<Q>>) {
      return P(std::move(first));
    } else {
      return take<P>(others...);
    }
  }

  void check_open() const {
    TUTTI_CHECK(!engine_.closed(),
                "this trainer has been closed, by close() or after an exception; "
                "make a new one, with load_path set to its last checkpoint to go on from there");
  }

  // For work that has begun: an exception closes every policy before it goes on.
  template <class F>
  void guard(F&& f) {
    const cpu::Cache memory(cpu_memory_.used);
    try {
      f();
    } catch (...) {
      const auto error = std::current_exception();
      detail::drop_stack_trace(error);
      if (run_.checkpoints) {
        run_.checkpoints->abandon();
      }
      try {
        engine_.close(state_);
      } catch (const std::exception& second) {
        TORCH_WARN("closing the trainer after an exception failed as well: ", second.what());
      }
      std::rethrow_exception(error);
    }
  }

  void construct(AnyModel model) {
    TUTTI_CHECK(model, "the trainer was given no model");
    train::check_options(options_);
    join_world();
    cpu_memory_.used = options_.cache_cpu_memory && state_.device.is_cpu();
    const cpu::Cache memory(cpu_memory_.used);
    train::check_precision(options_.precision, state_.device);
    if (options_.cuda_graphs) {
      run_.graphs = train::make_graphs(options_.cuda_graphs, GraphPlan<recipe>::why_not(), state_);
    }
    if (options_.deterministic_mode) {
      configure_deterministic_mode();
    }
    state_.rank_zero_seed = train::agree_on_seed(options_.seed, *state_.communicator);
    state_.seed = state_.rank_zero_seed + static_cast<std::uint64_t>(state_.rank);
    seed_all(state_.seed);
    state_.precision = options_.precision;
    state_.task = std::move(model);
    state_.model = state_.task.module();
    TUTTI_CHECK(state_.model,
                "the model's module() is null; return the torch::nn::Module that "
                "holds its parameters");
    state_.model->to(state_.device);
    state_.run_name = train::resolve_run_name(options_.run_name, *state_.communicator);
    state_.run_folder = train::resolve_run_folder(options_, state_);
    make_optimizer();
    state_.logger.add(constants_);
    engine_.for_each([this](auto& policy) { this->prepare(policy); });
    engine_.template fire<Init>(state_);
    train::log_hyperparameters(state_, options_, train::policy_constants(engine_));
    prepare_run();
    engine_.template fire<BeforeLoad>(state_);
    load();
    engine_.template fire<AfterLoad>(state_);
    seed_all(state_.seed);
    run_.data_parallel = options_.data_parallel;
    run_.parallel = train::make_parallel(engine_, state_, run_);
  }

  void join_world() {
    const dist::Environment here = dist::here();
    state_.device = train::resolve_device(options_.device, here.local_rank);
    const auto timeout = std::chrono::duration<double>(options_.dist_timeout);
    state_.communicator = dist::join(
        here, state_.device.type(), std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
    state_.rank = state_.communicator->rank();
    state_.world_size = state_.communicator->size();
  }

  void make_optimizer() {
    if (!options_.optimizer) {
      options_.optimizer = DecoupledSGDW{.lr = 0.1};
      optimizer_is_default_ = true;
    }
    state_.optimizers = {train::build_optimizer(options_.optimizer, *state_.model)};
    if (optim::calls_closure(*state_.optimizers.front())) {
      constexpr std::string_view taker = train::detail::step_taker(typename EngineType::policies{});
      train::check_closure(*state_.optimizers.front(), options_, taker);
      run_.graphs.reset();
    }
  }

  template <class P>
  void prepare(P& policy) {
    seed_policy(policy, state_.seed);
    if constexpr (LoggerDestination<P>) {
      if (detail::is_on(policy)) {
        state_.logger.add(policy);
      }
    }
  }

  // What the loop needs: metrics, data, schedule, scaler, where checkpoints go.
  void prepare_run() {
    run_.train_metrics = train::MetricSet(state_.task.metrics(true), {}, "metrics/train/");
    run_.train = shard(options_.train);
    run_.evals = make_sets(options_.eval);
    train::set_loop(run_, options_);
    train::set_microbatching(state_, run_, options_);
    train::set_length(state_, run_, options_.max_duration, options_.scale_schedule_ratio);
    if (options_.schedule) {
      set_schedule(options_.schedule, options_.scale_schedule_ratio);
    }
    if (state_.precision == Precision::amp_fp16) {
      run_.scaler.emplace(state_.device);
    }
    open_checkpoints();
  }

  // What saves and loads comes with a path, or is wanted by a policy that saves.
  void open_checkpoints() {
    if constexpr ((train::has_saver<detail::Bare<Policies>> || ...)) {
      open_checkpoints(CheckpointPath(""));
    } else if (!options_.save_folder.empty() || !options_.load_path.empty()) {
      open_checkpoints(options_.save_folder.empty() ? options_.load_path : options_.save_folder);
    }
  }
  void open_checkpoints(const CheckpointPath& path) {
    auto checkpoints = path.checkpoints(state_, run_);
    checkpoints->open(options_, train::policy_states(engine_));
    run_.checkpoints = std::move(checkpoints);
  }

  void load() {
    train::check_autoresume(options_);
    if (run_.checkpoints) {
      load_report_ = run_.checkpoints->load(options_);
    }
  }

  // Deals a loader's examples to the ranks.
  DataSpec shard(DataSpec data) const {
    if (data && state_.world_size > 1 && !data.loader.shard(state_.rank, state_.world_size)) {
      TORCH_WARN_ONCE("a loader has no shard(rank, world_size), so all ", state_.world_size,
                      " ranks read the same batches unless it deals them out itself");
    }
    return data;
  }

  void set_schedule(Schedule schedule, double ratio) {
    if (state_.initial_lrs.empty()) {
      run_.bind_schedule(state_);
    }
    run_.schedule = std::move(schedule);
    run_.scale_schedule_ratio = ratio;
    if (state_.max_duration) {
      apply_schedule();
    }
  }

  // Once when a schedule is bound and when the run's length changes; else the loop does it, so a
  // resumed run keeps the learning rate that it was saved with.
  void apply_schedule() {
    const std::string notice = run_.schedule.notice(state_.progress(), run_.scale_schedule_ratio);
    if (!notice.empty()) {
      TORCH_WARN(notice);
    }
    run_.step_schedule(state_, run_.scheduled_at);
    schedule_applied_ = true;
  }

  std::vector<train::EvalSet> make_sets(std::vector<Evaluator> evaluators) {
    std::vector<train::EvalSet> sets;
    for (auto& evaluator : evaluators) {
      evaluator.data = shard(std::move(evaluator.data));
      train::add_set(sets, std::move(evaluator), state_.task.metrics(false), options_);
    }
    return sets;
  }

  // Takes over what the options change, once all of them have been checked. False when an
  // automatically resumed run is complete.
  bool prepare_fit(FitOptions options) {
    std::vector<train::EvalSet> evals = make_sets(std::move(options.eval));
    options.train = shard(std::move(options.train));
    const train::FitPlan plan = train::plan_fit(state_, run_, options);
    const bool resumed = options_.autoresume && run_.checkpoints->continues();
    if (!plan.complete || !resumed) {
      train::check_something_is_left(state_, plan);
      if (!options_.allow_idle_policies) {
        train::check_idle(engine_, !evals.empty() || !run_.evals.empty(),
                          static_cast<bool>(run_.iteration_length));
      }
    }
    const bool stays = schedule_applied_ && state_.max_duration == plan.max_duration &&
                       !(options.reset_time && run_.schedule_ahead);
    train::take_over(state_, run_, options, std::move(evals), plan);
    if (options.schedule) {
      set_schedule(std::move(options.schedule), options.scale_schedule_ratio);
    } else if (run_.schedule && !stays) {
      apply_schedule();
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

  void begin_fit() {
    state_.dataloader_label = "train";
    state_.dataloader_len = state_.train_dataloader_len;
    state_.train_transforms = run_.train.loader.transforms();
  }

  void eval_sets(std::vector<train::EvalSet>& sets) {
    check_open();
    train::check_eval_sets(state_, sets);
    guard([&] { train::evaluate_standalone(engine_, state_, run_, sets); });
  }

  cpu::EmptiesCache cpu_memory_;  // first: gives back what the others have freed
  TrainerOptions options_;
  State state_;
  train::Constants constants_;
  train::Run run_;
  RunLoadReport load_report_;
  bool schedule_applied_ = false;
  bool optimizer_is_default_ = false;  // and nobody has been told yet
  EngineType engine_;
};

}  // namespace tutti
