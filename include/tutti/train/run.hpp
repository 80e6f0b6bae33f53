// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <tutti/config.hpp>
#include <tutti/core/count_or_auto.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/interval.hpp>
#include <tutti/core/log.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/data/data_spec.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/data_parallel.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/optim/initial_lr.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/best_weights.hpp>
#include <tutti/train/detail/graph_support.hpp>
#include <tutti/train/detail/step_threads.hpp>
#include <tutti/train/metrics.hpp>
#include <tutti/train/precision.hpp>
#include <tutti/train/several.hpp>

namespace tutti::train {

class RunCheckpoints;

/// One evaluation set while a trainer lives.
struct EvalSet {
  std::string label;
  DataSpec data;
  TimeOrFunction when;       ///< it is due during fit
  Interval interval;         ///< of that, where it is a time
  std::int64_t subset = -1;  ///< batches; -1: all
  CountOrAuto microbatch;    ///< examples; 0: the whole batch; automatic: 0 until one was seen
  MetricSet metrics;
  std::int64_t postponed_at = -1;  ///< batch at which a signal cancelled this evaluation; the
                                   ///< resumed run starts with it. -1: none
  std::int64_t evaluated_at = -1;  ///< batch at which its values were last computed; -1: never
};

/// Batches that will be taken of a loader; -1: unknown. subset: at most so many; negative: all.
inline std::int64_t length_of(const DataSpec& data, std::int64_t subset) {
  const std::int64_t length = data.loader.size();
  return subset >= 0 && (length < 0 || subset < length) ? subset : length;
}

/// Begins an epoch at one of its batches, with the run's seed where the loader has none of its own.
inline void start_epoch(DataSpec& data, const State& state, std::int64_t epoch = 0,
                        std::int64_t first_batch = 0) {
  data.loader.follow_seed(state.rank_zero_seed);
  data.loader.start(epoch, first_batch);
}

/// The next batch, or nothing when the epoch is over; tutti-run notices when it does not come. The
/// first one of an epoch may take as long as it takes: a stream may go through what came before.
inline std::optional<Batch> next_watched(AnyLoader& loader) {
  const dist::PhaseScope loading(dist::Phase::load);
  return loader.next();
}

/// Runs the policies that act on `E`; tutti-run notices when they do not come to their end.
template <Event E, class Engine>
void fire_watched(Engine& engine, State& state) {
  const dist::PhaseScope callbacks(dist::phase_of<E>);
  engine.template fire<E>(state);
}

/// What the loop needs beside State; policies do not see it.
struct Run {
  DataSpec train;
  std::int64_t train_subset = -1;         ///< batches that make an epoch; -1: all
  bool same_epoch = false;                ///< every epoch has the batches of the first one
  std::int64_t batches_from_outside = 0;  ///< of this epoch's, those of step()
  std::vector<EvalSet> evals;
  MetricSet train_metrics;
  std::unique_ptr<BestWeights> best;  ///< null: none are kept

  Schedule schedule;        ///< empty: constant learning rates
  std::vector<Turn> turns;  ///< by optimizer, where there are several: their schedules are in use
  double scale_schedule_ratio = 1.0;
  bool step_schedule_every_batch = true;
  bool schedule_ahead = false;  ///< rates are those of what comes, not of what has just ended
  Timestamp scheduled_at;       ///< for which the schedule was computed last

  std::optional<GradScaler> scaler;
  bool fold_into_optimizer = true;
  bool autograd_engine = false;
  bool detect_anomaly = false;
  std::unique_ptr<StepGraphs> graphs;    ///< null: microbatches are trained without
  std::unique_ptr<StepThreads> threads;  ///< null: their number stays
  std::unique_ptr<dist::DataParallel> parallel;
  dist::DataParallelOptions data_parallel;
  bool weigh_by_tokens = false;
  std::int64_t grad_accum = 0;  ///< microbatches of a batch; 0: as large as state says
  Time iteration_length{};      ///< in ep or tok; 0: no iterations

  std::function<void()> restore_rng;  ///< pending after a load, called before the next batch

  std::function<void()> load_parts;  ///< pending after a load, called when the run is sharded

  std::shared_ptr<RunCheckpoints> checkpoints;  ///< null: none are written or loaded
  tutti::detail::LoggedValues logged;           ///< what log() was given in this step
  bool uneven_ranks = false;       ///< some may have one example of a batch more than others
  std::vector<at::Tensor> frozen;  ///< parameters without a gradient when the optimizer was made
  bool heeds_signals = true;
  bool has_seen_nan = false;  ///< as a training loss, of which a warning has spoken
  int stop_signal = 0;        ///< that has ended the run, the same on every rank; 0: none

  /// The newest checkpoint in the options' own folder that is this run's; empty: none.
  [[nodiscard]] std::string last_checkpoint() const;

  /// Waits until all checkpoints are written and copied, and leaves the save folders to others.
  void finish();

  /// Leaves the save folders to others.
  void release_folders();

  /// Closes every policy of the engine and leaves the save folders to others.
  template <class Engine>
  void close(Engine& engine, State& state) {
    release_folders();
    engine.close(state);
  }

  /// Some learning rate follows a schedule: the run's, an optimizer's or a group's own.
  [[nodiscard]] bool has_schedule(const State& state) const;

  /// Warns of what schedules say about the run's length.
  void warn_of_schedules(const State& state) const;

  /// Steps the schedule when a batch, an epoch or an iteration has ended. next: the timestamp with
  /// which the run goes on; state still has the one before.
  ///
  /// With schedule_ahead the rates are those of `next`, so that a schedule sees every batch, or
  /// every epoch, with the timestamp at which it begins; else those of state's.
  void step_schedule_after_batch(State& state, const Timestamp& next) {
    if (step_schedule_every_batch) {
      step_schedule(state, schedule_ahead ? next : state.timestamp);
    }
  }
  void step_schedule_after_epoch(State& state, const Timestamp& next) {
    if (schedule_ahead || !step_schedule_every_batch) {
      step_schedule(state, schedule_ahead ? next : state.timestamp);
    }
  }
  void step_schedule_after_iteration(State& state, const Timestamp& next) {
    if (schedule_ahead && (step_schedule_every_batch || next.batch_in_epoch == 0)) {
      step_schedule(state, next);
    }
  }

  /// Sets every group's learning rate to what its own schedule, or else its optimizer's, or else
  /// the run's, says at that moment of the run; where there is none, it stays.
  void step_schedule(State& state, const Timestamp& at);

  /// Sets every group's learning rate to `alpha` times its initial one.
  static void set_learning_rates(State& state, double alpha);

  /// Remembers the groups' present learning rates as those that the schedule multiplies.
  static void bind_schedule(State& state);
};

/// Forgets all gradients, also those that are views of a reduction buffer.
void zero_gradients(State& state);

/// Wall-clock time of training alone: it stands still during evaluations and saves.
class Clock {
 public:
  using Duration = Timestamp::Duration;

  /// Forgets what has passed, and begins anew.
  void start() { last_ = std::chrono::steady_clock::now(); }
  /// Time since the last lap() or start(), pauses left out.
  Duration lap();
  /// What passes from here to resume() is left out, and no more than that.
  void pause() { paused_at_ = std::chrono::steady_clock::now(); }
  void resume() { last_ += std::chrono::steady_clock::now() - paused_at_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point paused_at_{};
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/run.inl.hpp>
#endif
