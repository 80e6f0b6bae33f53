// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <torch/nn/module.h>

#include <tutti/checkpoint/rng_state.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/heartbeat.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/train/detail/logged_values.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_checkpoints.hpp>
#include <tutti/train/setup.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/train/step.hpp>

namespace tutti::train {

/// The training loop, from FitStart to FitEnd. core/event.hpp shows it in pseudocode.
/// Source: MosaicML Composer, `Trainer._train_loop`.
template <class Engine>
class Loop {
 public:
  Loop(Engine& engine, State& state, Run& run)
      : engine_(engine), state_(state), run_(run), step_(engine, state, run) {}

  /// Trains until state.max_duration, or until a signal has ended the run: then every rank has
  /// saved after the same batch, and FitEnd is not fired.
  void operator()() {
    if constexpr (requires { engine_.allow_deferred(true); }) {
      engine_.allow_deferred(!run_.graphs && !run_.threads && only_policies_see_batches());
    }
    dist::start_heartbeat();
    engine_.template fire<FitStart>(state_);
    state_.model->train();
    run_.stop_signal = 0;
    clock_.start();
    evaluate_postponed();
    if (iteration_is_over(TimeUnit::token) || iteration_is_over(TimeUnit::epoch)) {
      end_iteration();  // the checkpoint was written just before
    }
    if (state_.timestamp >= state_.max_duration && epoch_is_over()) {
      end_epoch();  // that evaluation has ended the run
    }
    while (state_.timestamp < state_.max_duration) {
      const bool finished = epoch();
      if (stopped()) {
        return;
      }
      if (finished) {
        end_epoch();
      }
    }
    watch_last_loss();
    log_epoch();  // where the run has come to
    log_time(state_.timestamp.token > 0);
    finish();
  }

  /// Begins training on batches that come from outside: FitStart, and the starts that are due.
  void begin() {
    engine_.template fire<FitStart>(state_);
    state_.model->train();
    run_.stop_signal = 0;
    clock_.start();
    if (state_.timestamp.batch_in_epoch == 0) {
      restore_rng();
    }
    if (state_.timestamp.epoch_in_iteration == 0 && state_.timestamp.batch_in_epoch == 0) {
      fire_watched<IterationStart>(engine_, state_);
    }
    if (state_.timestamp.batch_in_epoch == 0) {
      fire_watched<EpochStart>(engine_, state_);
    }
    clock_.pause();
  }

  /// Trains on one of them, from AfterDataloader to BatchCheckpoint.
  void train_on(Batch one) {
    restore_rng();
    clock_.resume();  // what has passed outside is not training
    ++run_.batches_from_outside;
    batch(std::move(one));
    clock_.pause();
  }

  /// Ends it: FitEnd, with the evaluations and checkpoints that are due there.
  void end() {
    watch_last_loss();
    finish();
  }

 private:
  // FitEnd, with the evaluations and checkpoints that are due there. All ranks then have the model
  // that rank 0 saves, buffers included.
  void finish() {
    if (run_.parallel) {
      run_.parallel->broadcast_buffers();
    }
    engine_.template fire<FitEnd>(state_);
    evaluate_sets(engine_, state_, run_, due_sets<FitEnd>(state_, run_));
    save_due<FitEnd>(look<FitEnd>());
  }

  // One pass over the loader, or what is left of it. Returns whether the epoch came to its end.
  bool epoch() {
    Timestamp& now = state_.timestamp;
    if (now.batch_in_epoch == 0) {
      restore_rng();
      if (now.epoch_in_iteration == 0) {
        fire_watched<IterationStart>(engine_, state_);
      }
      fire_watched<EpochStart>(engine_, state_);
      log_epoch();
    }
    const Timestamp begun = now;
    const std::int64_t first = now.batch_in_epoch - run_.batches_from_outside;
    start_epoch(run_.train, state_, run_.same_epoch ? 0 : now.epoch, first);
    restore_rng();  // in the middle of an epoch, when the loader has come to the batch that is next
    for (std::int64_t done = first;; ++done) {
      fire_watched<BeforeDataloader>(engine_, state_);
      if (run_.train_subset >= 0 && done >= run_.train_subset) {
        break;
      }
      std::optional<Batch> next =
          done == first ? run_.train.loader.next() : next_watched(run_.train.loader);
      if (!everybody(next.has_value())) {
        TUTTI_CHECK(done > 0, "the training loader gave no batch in epoch ", now.epoch,
                    ", so nothing can be trained; give it data (drop_last leaves out a batch that "
                    "is not full) and let it begin anew at every start(epoch, first_batch)");
        if (next) {
          warn_of_rest(state_, done);
        }
        break;
      }
      if (batch(std::move(*next))) {
        return epoch_is_over();
      }
      if (done == first && done > 0) {
        warn_of_batch_size(state_, begun);
      }
    }
    return true;
  }

  [[nodiscard]] bool epoch_is_over() const {
    return state_.dataloader_len >= 0 &&
           state_.timestamp.batch_in_epoch - run_.batches_from_outside >= state_.dataloader_len;
  }

  // LibTorch's generators go on where the checkpoint that was loaded left them.
  void restore_rng() {
    if (run_.restore_rng) {
      std::exchange(run_.restore_rng, nullptr)();
    }
  }

  // Trains on one batch. Returns whether the run, or the iteration, ends here.
  bool batch(Batch fetched) {
    std::optional<dist::PhaseScope> callbacks(dist::phase_of<AfterDataloader>);
    state_.batch = run_.train.transform(std::move(fetched));
    std::array<std::int64_t, 2> counts{run_.train.num_samples(state_.batch),
                                       run_.train.num_tokens(state_.batch).total};
    engine_.template fire<AfterDataloader>(state_);
    std::optional<Logger::WithinBatch> within(std::in_place, state_.logger);
    callbacks.emplace(dist::phase_of<BatchStart>);
    engine_.template fire<BatchStart>(state_);
    log_time(counts[1] > 0);
    callbacks.reset();
    Clock::Duration passed{};
    {
      const BatchScope scope(state_.timestamp.batch);
      run_.threads ? run_.threads->train(state_, run_, [this] { step_(); }) : step_();
      log_microbatch_size();
      report_losses();
      passed = clock_.lap();
      if (agree(counts, passed)) {
        report_logged();
      }
    }
    callbacks.emplace(dist::phase_of<BatchEnd>);
    const Timestamp next = state_.timestamp.to_next_batch(counts[0], counts[1], passed);
    run_.step_schedule_after_batch(state_, next);
    compute_train_metrics();
    state_.previous_timestamp = state_.timestamp;
    state_.timestamp = next;
    TUTTI_CHECK(state_.timestamp.token > 0 || state_.max_duration.unit() != TimeUnit::token,
                "max_duration is ", to_string(state_.max_duration),
                ", and the batches have no tokens; give DataSpec a num_tokens function, or call "
                "the tensor that counts input_ids");
    TUTTI_CHECK(state_.timestamp.sample > 0 || state_.max_duration.unit() != TimeUnit::sample,
                "max_duration is ", to_string(state_.max_duration),
                ", and the batches have no examples; DataSpec's num_samples gave 0");
    if (state_.timestamp.batch == 1 && state_.timestamp.token == 0) {
      warn_of_no_tokens(state_, run_);
    }
    engine_.template fire<BatchEnd>(state_);
    if constexpr (detail::may_skip<Engine>) {
      go_back();
    }
    within.reset();
    callbacks.reset();
    follow_parameters();
    evaluate<BatchEnd>();
    checkpoint<BatchCheckpoint>();
    const bool iteration_done = iteration_is_over(TimeUnit::token);
    if (iteration_done) {
      warn_of_iteration(state_, run_);
      end_iteration();
    }
    return iteration_done || stopped() || state_.timestamp >= state_.max_duration;
  }

  // A batch that the launcher sees begin and end.
  struct BatchScope {
    explicit BatchScope(std::int64_t batch) { dist::flight_recorder().begin_batch(batch); }
    BatchScope(const BatchScope&) = delete;
    BatchScope& operator=(const BatchScope&) = delete;
    ~BatchScope() { dist::flight_recorder().end_batch(); }
  };

  // Between AfterDataloader and BeforeForward nobody else looks at the pixels of a batch or keeps
  // them.
  [[nodiscard]] bool only_policies_see_batches() const {
    const DataHooks& hooks = run_.train.hooks;
    return !hooks.split_batch && !hooks.microbatch_transform &&
           (run_.train_metrics.empty() || !state_.task.has_update_metric());
  }

  // A signal ends the run before its time. One that comes with the last batch changes nothing here.
  [[nodiscard]] bool stopped() const {
    return run_.stop_signal != 0 && state_.timestamp < state_.max_duration;
  }

  void end_epoch() {
    restore_rng();
    watch_last_loss();
    const Timestamp next = state_.timestamp.to_next_epoch();
    run_.step_schedule_after_epoch(state_, next);
    compute_train_metrics();
    state_.previous_timestamp = state_.timestamp;
    state_.timestamp = next;
    run_.batches_from_outside = 0;
    fire_watched<EpochEnd>(engine_, state_);
    warn_of_untrained(state_, run_);
    follow_parameters();
    evaluate<EpochEnd>();
    checkpoint<EpochCheckpoint>();
    if (iteration_is_over(TimeUnit::epoch)) {
      end_iteration();
    }
  }

  // Of iterations that are as long as so many of that unit.
  [[nodiscard]] bool iteration_is_over(TimeUnit unit) const {
    const Timestamp& now = state_.timestamp;
    return run_.iteration_length && run_.iteration_length.unit() == unit &&
           (unit == TimeUnit::token ? now.token_in_iteration : now.epoch_in_iteration) >=
               run_.iteration_length.count();
  }

  void end_iteration() {
    const Timestamp next = state_.timestamp.to_next_iteration();
    run_.step_schedule_after_iteration(state_, next);
    state_.previous_timestamp = state_.timestamp;
    state_.timestamp = next;
    fire_watched<IterationEnd>(engine_, state_);
    follow_parameters();
    checkpoint<IterationCheckpoint>();
  }

  template <Event E>
  void evaluate() {
    if (run_.evals.empty()) {
      return;
    }
    const std::vector<EvalSet*> due = due_sets<E>(state_, run_);
    if (due.empty()) {
      return;
    }
    if (stopped()) {  // time is short
      for (EvalSet* set : due) {
        set->postponed_at = state_.timestamp.batch;
      }
      return;
    }
    clock_.pause();
    evaluate_sets(engine_, state_, run_, due);
    clock_.resume();
  }

  // As it would have been: with the generators of that batch, and a checkpoint if it is the best.
  void evaluate_postponed() {
    std::vector<EvalSet*> due;
    for (EvalSet& set : run_.evals) {
      if (std::exchange(set.postponed_at, -1) == state_.timestamp.batch) {
        set.interval.last_batch = state_.timestamp.batch;
        due.push_back(&set);
      }
    }
    if (due.empty()) {
      return;
    }
    restore_rng();
    clock_.pause();
    evaluate_sets(engine_, state_, run_, due);
    Archive rng;  // the loader may draw when it starts
    checkpoint::save_rng(rng);
    run_.restore_rng = [rng = std::move(rng)] { checkpoint::load_rng(rng); };
    clock_.resume();
    if (look<BatchCheckpoint>()) {
      checkpoint<BatchCheckpoint>(true);
    }
  }

  template <Event E>
  void checkpoint() {
    checkpoint<E>(look<E>());
  }
  template <Event E>
  void checkpoint(bool due) {
    engine_.template fire<E>(state_);
    save_due<E>(due);
  }

  // Asks every saver.
  template <Event E>
  bool look() {
    return run_.checkpoints && run_.checkpoints->due(E{}, stopped());
  }

  template <Event E>
  void save_due(bool due) {
    if (due) {
      clock_.pause();
      for (std::string name; !(name = run_.checkpoints->save_next()).empty();) {
        engine_.record(E::name, "save:" + name);
      }
      clock_.resume();
    }
  }

  // Takes weights, optimizers and policies from an earlier checkpoint where a policy wants that.
  void go_back() {
    if (state_.go_back >= 0) {
      TUTTI_CHECK(run_.checkpoints, cannot_go_back);
      const dist::PhaseScope loading(dist::Phase::unwatched);
      clock_.pause();
      run_.checkpoints->go_back(std::exchange(state_.go_back, -1));
      engine_.record(BatchEnd::name, "go_back");
      clock_.resume();
    }
  }
  static constexpr const char* cannot_go_back =
      "a policy wants the run to go back to its last checkpoint, but there is none; set "
      "save_folder and a save_interval, or reload_after of SkipSpikes to 0";

  // Averages the gradients of the parameters that the model has now.
  void follow_parameters() {
    if (state_.parameters_replaced) {
      state_.parameters_replaced = false;
      if (run_.graphs) {
        run_.graphs->forget();
      }
      TUTTI_CHECK(state_.sharding == nullptr,
                  "a policy has given the model other parameters, but the model is sharded; set "
                  "sharding.stage to ShardStage::none, or remove the policy");
      run_.parallel.reset();  // its hooks sit on the old ones
      run_.parallel = make_parallel(engine_, state_, run_);
    }
  }

  // Sums samples and tokens over the ranks; the time is rank 0's. Signals and failed writes, of
  // which one rank may know alone, travel with them. Returns whether any rank has logged values.
  bool agree(std::array<std::int64_t, 2>& counts, Clock::Duration& passed) {
    int signal = run_.heeds_signals ? received_signal() : 0;
    bool failed = run_.checkpoints && run_.checkpoints->failed();
    bool logged = !run_.logged.empty();
    if (state_.world_size > 1) {
      std::array<std::int64_t, 8> values{counts[0],
                                         counts[1],
                                         state_.rank == 0 ? passed.count() : 0,
                                         signal == SIGTERM,
                                         signal == SIGINT,
                                         signal == SIGUSR1,
                                         failed,
                                         logged};
      const dist::CallPurpose counting("the batch's samples");
      state_.communicator->all_reduce(std::span<std::int64_t>(values), dist::ReduceOp::sum);
      const std::int64_t same = state_.world_size / dist::data_ranks(state_);  // have one batch
      counts = {values[0] / same, values[1] / same};
      passed = Clock::Duration(values[2]);
      signal = values[3] > 0 ? SIGTERM : values[4] > 0 ? SIGINT : values[5] > 0 ? SIGUSR1 : 0;
      failed = values[6] > 0;
      logged = values[7] > 0;
    }
    run_.stop_signal = signal;
    if (failed) {
      run_.checkpoints->wait();
    }
    return logged;
  }

  // What the model has given to log(): means over the batch and all ranks.
  void report_logged() {
    auto sums = run_.logged.take();
    if (state_.world_size > 1) {
      sums = detail::over_ranks(std::move(sums), *state_.communicator);
    }
    for (const auto& [name, sum] : sums) {
      if (sum.weight > 0) {  // of microbatches that count
        log({{name, sum.sum / sum.weight}});
      }
    }
  }

  [[nodiscard]] bool everybody(bool has_batch) const {
    const dist::CallPurpose reading("the next batch");
    return state_.world_size == 1 ? has_batch
                                  : state_.communicator->all_reduce_value(
                                        std::int64_t{has_batch}, dist::ReduceOp::minimum) > 0;
  }

  void report_losses() {
    for (auto& [name, loss] : state_.total_loss) {
      if (state_.world_size > 1) {
        loss = loss.div(state_.world_size);
        const dist::CallPurpose mean("the loss");
        state_.communicator->all_reduce(loss, dist::ReduceOp::sum);
      }
      if (state_.logger.wants_metrics()) {
        const std::string key = "loss/train/" + name;
        const double value = loss.template item<double>();
        log({{key, value}});
        if (name == "total") {
          watch(value, state_.timestamp.batch);
        }
      }
    }
    if (!state_.logger.wants_metrics() && state_.device.is_cpu()) {
      const at::Tensor& total = state_.total_loss["total"];
      watch(total.scalar_type() == at::kFloat
                ? static_cast<double>(*total.template const_data_ptr<float>())
                : total.template item<double>(),
            state_.timestamp.batch);
    }
  }

  // Where nobody reads the losses of a device, this waits for it at the end of an epoch alone.
  void watch_last_loss() {
    if (!run_.has_seen_nan && !state_.device.is_cpu() && !state_.logger.wants_metrics() &&
        state_.total_loss.contains("total")) {
      watch(state_.total_loss.at("total").template item<double>(), state_.timestamp.batch - 1);
    }
  }

  // Says once, at the first batch that is seen to have one, that the loss is not a number.
  void watch(double loss, std::int64_t batch) {
    if (std::isnan(loss) && !std::exchange(run_.has_seen_nan, true) && state_.rank == 0) {
      TORCH_WARN("the training loss is not a number (nan) in batch ", batch, " of the run, epoch ",
                 state_.timestamp.epoch,
                 "; training goes on, but will hardly recover. Lower the learning rate, clip "
                 "gradients (GradientClipping), look at that batch, or end such runs with the "
                 "callback NaNMonitor");
    }
  }

  void log_microbatch_size() const {
    if (state_.device_train_microbatch_size > 0) {
      log({{"trainer/device_train_microbatch_size",
            static_cast<double>(state_.device_train_microbatch_size)}});
    }
  }

  void compute_train_metrics() {
    if (!run_.train_metrics.empty()) {
      run_.train_metrics.compute(*dist::data_group(state_), state_, state_.train_metric_values);
    }
  }

  void log_epoch() const { log({{"time/epoch", static_cast<double>(state_.timestamp.epoch)}}); }

  void log_time(bool tokens) const {
    if (!state_.logger.wants_metrics()) {
      return;
    }
    const Timestamp& now = state_.timestamp;
    log({{"time/batch", static_cast<double>(now.batch)},
         {"time/sample", static_cast<double>(now.sample)},
         {"time/batch_in_epoch", static_cast<double>(now.batch_in_epoch)},
         {"time/sample_in_epoch", static_cast<double>(now.sample_in_epoch)}});
    if (tokens) {
      log({{"time/token", static_cast<double>(now.token)},
           {"time/token_in_epoch", static_cast<double>(now.token_in_epoch)}});
    }
  }

  void log(std::initializer_list<LoggedMetric> metrics) const { state_.log_metrics(metrics); }

  Engine& engine_;
  State& state_;
  Run& run_;
  Step<Engine> step_;
  Clock clock_;
};

}  // namespace tutti::train
