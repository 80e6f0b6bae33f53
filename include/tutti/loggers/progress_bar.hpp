// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/comparison.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/detail/bar.hpp>
#include <tutti/loggers/detail/latest.hpp>
#include <tutti/loggers/detail/report.hpp>
#include <tutti/loggers/detail/terminal.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti {

/// Shows how a run goes, at rank 0: first its summary in eight lines, then a line for each epoch
/// with the training losses, the last evaluation and the time that is left of the whole run, and at
/// the end a table of its best and last metrics, with where the weights are and how to go on.
///
///     epoch 12/30  52% loss=0.3541 test/MulticlassAccuracy=0.9722 00:41 left |#####    |
///
/// An evaluation shows its own progress in the same line while it runs. A run that is not counted
/// in epochs has one line, of which a copy stays at every evaluation. What does not fit into the
/// terminal's width is left out, the least important first; numbers come before the bar.
///
/// A terminal is redrawn at most every `redraw_seconds`; it has colours unless NO_COLOR is set in
/// the environment. Anything else (a file, a pipe, TERM=dumb) gets no control codes and no bar, but
/// a whole line where one would stay on a terminal and, in between, every `line_seconds`.
/// Source: MosaicML Composer, `composer.loggers.ProgressBarLogger`; a line for each epoch is
/// Keras', a summary first Lightning's.
struct ProgressBar final {
  static constexpr std::string_view name = "ProgressBar";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, FitStart, EpochStart, BatchStart, BatchEnd, EpochEnd, FitEnd,
                       EvalStart, EvalBatchEnd, EvalEnd, PredictStart, PredictBatchEnd, PredictEnd>;

  std::FILE* stream = stderr;      ///< where to; stays open
  double redraw_seconds = 0.1;     ///< at least between two drawings on a terminal
  double line_seconds = 10;        ///< at least between two lines elsewhere
  bool summary = true;             ///< what the run is at its start, and what came of it at its end
  std::optional<bool> terminal{};  ///< treat the stream as one; empty: find out
  std::optional<int> width{};      ///< columns; empty: the terminal's, elsewhere no limit

  using Clock = std::chrono::steady_clock;

  /// Progress on its way; not an option.
  struct Track {
    detail::Progression shown{};
    Clock::time_point began{};
    Clock::time_point drawn{};
    Clock::duration paused{};  // while another one was shown
    bool open = false;
  };
  /// What it holds while it runs; not an option.
  struct Run {
    Track train{};
    Track other{};  // evaluation or prediction
    detail::LatestValues losses{};
    detail::LatestValues metrics{};  // of the evaluation that has just ended
    detail::Report report{};
    TimeUnit unit = TimeUnit::batch;  // of the training line, fixed when it opens
    bool line_per_epoch = true;
    bool epoch_over = false;
    bool settled = false;  // the line is to stay, once its evaluations have ended
    bool on_line = false;  // the cursor stands behind a line that has no end yet
    bool speaks = true;
    bool terminal = false;
  } run{};

  void apply(Init, const State& state) {
    run.speaks = state.rank == 0;
    run.terminal = terminal.value_or(detail::is_terminal(stream));
  }

  void apply(FitStart, const State& state) {
    say_summary(state);
    run.report.begin(state);
  }
  void apply(EpochStart, const State& state) { next_line(state); }
  void apply(BatchStart, const State& state) {
    if (run.settled || !run.train.open) {
      next_line(state);
    }
  }
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State& state);
  void apply(FitEnd, const State& state) { settle(state); }

  void apply(EvalStart, const State& state) { begin_other(state, state.dataloader_label); }
  void apply(EvalBatchEnd, const State& state) {
    run.other.shown.done = state.eval_timestamp.batch;
    step(run.other, state);
  }
  void apply(EvalEnd, const State& state);

  void apply(PredictStart, const State& state) { begin_other(state, state.dataloader_label); }
  void apply(PredictBatchEnd, const State& state) {
    run.other.shown.done = state.predict_timestamp.batch;
    step(run.other, state);
  }
  void apply(PredictEnd, const State& state) { end_other(state); }

  /// Ends the line that an exception left open.
  void close(const State& state);

  /// Keeps losses and metrics for the next drawing.
  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t);
  void log_hyperparameters(std::span<const Hyperparameter> values) { run.report.remember(values); }
  /// Ends the last line and shows what came of the run.
  void log_result(const LoggedResult& result);

 private:
  [[nodiscard]] detail::Look look() const;

  void say_summary(const State& state);

  // The line so far stays where it has to; training goes on in a line that is open.
  void next_line(const State& state);
  void open_train(const State& state);

  // Training has come to where its line is to stay.
  void settle(const State& state);

  void begin_other(const State& state, const std::string& label);
  void end_other(const State& state);

  void open(Track& track, std::string label, std::int64_t done, std::int64_t total, TimeUnit unit,
            const State& state);

  // Draws if it is time.
  void step(Track& track, const State& state);

  void draw(Track& track, const State& state);

  // What is drawn stays: on a terminal its end is written, elsewhere all of it.
  void leave(Track& track, const State& state);

  // The terminal's line is finished; what follows begins a new one.
  void leave_line();

  [[nodiscard]] std::vector<detail::Progression::Value> train_values() const;
  [[nodiscard]] std::vector<detail::Progression::Value> other_values(
      const std::string& label) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/progress_bar.inl.hpp>
#endif
