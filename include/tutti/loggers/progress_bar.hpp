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

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/detail/bar.hpp>
#include <tutti/loggers/detail/latest.hpp>
#include <tutti/loggers/detail/terminal.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti {

/// Draws progress bars, at rank 0: one per training epoch (or one for the whole run when that is
/// not counted in epochs), one per evaluation, one per prediction. To the right of the bar stand
/// time, rate and the latest training losses or evaluation metrics.
///
///     train Epoch 0: 52%|#############            | 12/23 [00:01<00:01, 11.5ba/s, loss/train=0.7]
///
/// A terminal is redrawn at most every `redraw_seconds`; anything else (a file, a pipe) gets no
/// control codes but a whole line at the end of every bar and, within a long one, every
/// `line_seconds`. The hyperparameters are printed first, as `Config:`.
/// Source: MosaicML Composer, `composer.loggers.ProgressBarLogger`.
struct ProgressBar final {
  static constexpr std::string_view name = "ProgressBar";
  static constexpr bool reads_gradients = false;
  using events = types<Init, FitStart, EpochStart, BatchStart, BatchEnd, EpochEnd, FitEnd,
                       EvalStart, EvalBatchEnd, EvalEnd, PredictStart, PredictBatchEnd, PredictEnd>;

  std::FILE* stream = stderr;      ///< where to; stays open
  double redraw_seconds = 0.1;     ///< at least between two drawings on a terminal
  double line_seconds = 10;        ///< at least between two lines elsewhere
  bool log_config = true;          ///< prints the hyperparameters first
  std::optional<bool> terminal{};  ///< treat the stream as one; empty: find out
  std::optional<int> width{};      ///< columns; empty: the terminal's, else 120

  using Clock = std::chrono::steady_clock;

  /// A bar on its way; not an option.
  struct Track {
    detail::Bar bar{};
    Clock::time_point began{};
    Clock::time_point drawn{};
    Clock::duration paused{};  // while another bar was drawn
    bool open = false;
    bool on_line = false;  // the terminal's line shows it
  };
  /// What has been received and not yet shown; not an option.
  struct Memory {
    Track train{};
    Track other{};  // evaluation or prediction
    detail::LatestValues metrics{};
    detail::Config config{};
    TimeUnit unit = TimeUnit::batch;  // of the training bar, fixed when it opens
    bool bar_per_epoch = true;
    bool config_printed = false;
    bool speaks = true;
    bool terminal = false;
    bool unicode = false;
  } memory{};

  void apply(Init, const State& state) {
    memory.speaks = state.rank == 0;
    memory.terminal = terminal.value_or(detail::is_terminal(stream));
    memory.unicode = memory.terminal && detail::draws_unicode();
  }

  void apply(FitStart, const State&) { print_config(); }
  void apply(EpochStart, const State& state) { open_train(state); }
  void apply(BatchStart, const State& state) { open_train(state); }  // after a resumption
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) {
    if (memory.bar_per_epoch) {
      finish(memory.train, "loss/train");
    }
  }
  void apply(FitEnd, const State&) { finish(memory.train, "loss/train"); }

  void apply(EvalStart, const State& state) {
    print_config();
    open(memory.other, eval_label(state), 0, state.dataloader_len, TimeUnit::batch);
  }
  void apply(EvalBatchEnd, const State& state) {
    memory.other.bar.done = state.eval_timestamp.batch;
    step(memory.other, {});
  }
  void apply(EvalEnd, const State& state) {
    finish(memory.other, "metrics/" + state.dataloader_label + "/");
  }

  void apply(PredictStart, const State& state) {
    print_config();
    open(memory.other, padded(state.dataloader_label, 15), 0, state.dataloader_len,
         TimeUnit::batch);
  }
  void apply(PredictBatchEnd, const State& state) {
    memory.other.bar.done = state.predict_timestamp.batch;
    step(memory.other, {});
  }
  void apply(PredictEnd, const State&) { finish(memory.other, {}); }

  /// Ends the lines of bars that an exception left open.
  void close(const State&) {
    leave_line();
    memory.train.open = memory.other.open = false;
  }

  /// Keeps losses and metrics for the next drawing.
  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t);
  void log_hyperparameters(std::span<const Hyperparameter> values) {
    detail::remember(memory.config, values);
  }

 private:
  static bool by_epoch(const State& state) {
    return !state.max_duration || state.max_duration.unit() == TimeUnit::epoch;
  }

  static std::string padded(std::string text, std::size_t columns) {
    text.resize(std::max(columns, text.size()), ' ');
    return text;
  }
  static std::string right(std::int64_t number, std::size_t columns) {
    const std::string text = std::to_string(number);
    return std::string(columns > text.size() ? columns - text.size() : 0, ' ') + text;
  }

  [[nodiscard]] std::string eval_label(const State& state) const;

  void open_train(const State& state);

  void open(Track& track, std::string label, std::int64_t done, std::int64_t total, TimeUnit unit);

  // Draws if it is time.
  void step(Track& track, std::string_view prefix);

  void finish(Track& track, std::string_view prefix);

  void draw(Track& track, std::string_view prefix, Clock::time_point now);

  // Latest values whose name begins with `prefix`; a prefix that is a folder is left out.
  [[nodiscard]] std::string values_text(std::string_view prefix) const;

  // The terminal's line is finished, whoever drew it; what follows begins a new one.
  void leave_line();

  void print_config();
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void ProgressBar::apply(BatchEnd, const State& state) {
  if (memory.train.open) {
    const Timestamp& now = state.timestamp;
    memory.train.bar.done =
        memory.bar_per_epoch ? now.batch_in_epoch : now.get(memory.unit).count();
    step(memory.train, "loss/train");
  }
}

TUTTI_INLINE void ProgressBar::log_metrics(std::span<const LoggedMetric> metrics, std::int64_t) {
  if (!memory.speaks) {
    return;
  }
  for (const LoggedMetric& metric : metrics) {
    if (metric.name.starts_with("loss") || metric.name.starts_with("metric")) {
      memory.metrics.set(metric.name, metric.value);
    }
  }
}

TUTTI_INLINE std::string ProgressBar::eval_label(const State& state) const {
  const std::string label = padded(state.dataloader_label, 15);
  if (!by_epoch(state)) {
    const TimeUnit unit = state.max_duration.unit();
    std::string word(detail::unit_word(unit));
    word[0] = static_cast<char>(word[0] - 'a' + 'A');
    return label + padded(word, 6) + " " + right(state.timestamp.get(unit).count(), 5) + ": ";
  }
  if (memory.train.open) {
    return label + "Batch " + right(state.timestamp.batch, 3) + ": ";
  }
  const std::int64_t epoch = state.timestamp.epoch;  // of which the results are: the last one
  return label + "Epoch " + right(epoch > 0 ? epoch - 1 : 0, 3) + ": ";
}

TUTTI_INLINE void ProgressBar::open_train(const State& state) {
  if (memory.train.open) {
    return;
  }
  const std::string label = padded(state.dataloader_label, 15);
  memory.bar_per_epoch = by_epoch(state);
  memory.unit = memory.bar_per_epoch ? TimeUnit::batch : state.max_duration.unit();
  if (memory.bar_per_epoch) {
    open(memory.train, label + "Epoch " + right(state.timestamp.epoch, 3) + ": ",
         state.timestamp.batch_in_epoch, state.dataloader_len, memory.unit);
  } else {
    open(memory.train, padded(label, 29), state.timestamp.get(memory.unit).count(),
         state.max_duration.count(), memory.unit);
  }
}

TUTTI_INLINE void ProgressBar::open(Track& track, std::string label, std::int64_t done,
                                    std::int64_t total, TimeUnit unit) {
  if (!memory.speaks) {
    return;
  }
  leave_line();
  track = {.bar = {.label = std::move(label),
                   .done = done,
                   .total = total,
                   .began_at = done,
                   .unit = to_string(unit)},
           .began = Clock::now(),
           .open = true};
  // A terminal gets its first drawing at once.
  const std::chrono::duration<double> wait(memory.terminal ? redraw_seconds : 0);
  track.drawn = track.began - std::chrono::ceil<Clock::duration>(wait);
  step(track, {});
}

TUTTI_INLINE void ProgressBar::step(Track& track, std::string_view prefix) {
  if (!track.open) {
    return;
  }
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> since = now - track.drawn;
  if (since.count() >= (memory.terminal ? redraw_seconds : line_seconds)) {
    draw(track, prefix, now);
  }
}

TUTTI_INLINE void ProgressBar::finish(Track& track, std::string_view prefix) {
  if (!track.open) {
    return;
  }
  track.open = false;
  const Clock::time_point now = Clock::now();
  draw(track, prefix, now);
  leave_line();
  if (&track == &memory.other && memory.train.open) {  // time spent here is not training's
    memory.train.paused += now - track.began;
  }
}

TUTTI_INLINE void ProgressBar::draw(Track& track, std::string_view prefix, Clock::time_point now) {
  if (!track.on_line) {
    leave_line();
  }
  track.drawn = now;
  track.bar.seconds = std::chrono::duration<double>(now - track.began - track.paused).count();
  track.bar.values = values_text(prefix);
  const int columns = width.value_or(detail::terminal_width(stream));
  std::string line = detail::bar_text(track.bar, columns - 1, memory.unicode);
  line = memory.terminal ? "\r" + line + "\033[K" : line + "\n";
  track.on_line = memory.terminal;
  detail::print(stream, line);
}

TUTTI_INLINE std::string ProgressBar::values_text(std::string_view prefix) const {
  std::string text;
  if (prefix.empty()) {
    return text;
  }
  for (const auto& [key, value] : memory.metrics) {
    if (key.starts_with(prefix)) {
      const std::size_t cut = prefix.ends_with('/') ? prefix.size() : 0;
      text += ", " + key.substr(cut) + "=" + detail::number_text(value);
    }
  }
  return text;
}

TUTTI_INLINE void ProgressBar::leave_line() {
  if (memory.train.on_line || memory.other.on_line) {
    memory.train.on_line = memory.other.on_line = false;
    detail::print(stream, "\n");
  }
}

TUTTI_INLINE void ProgressBar::print_config() {
  if (memory.speaks && log_config && !memory.config_printed && !memory.config.empty()) {
    leave_line();
    detail::print(stream, detail::config_text(memory.config));
  }
  memory.config_printed = true;
}

}  // namespace tutti

#endif
