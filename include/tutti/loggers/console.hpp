// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/detail/latest.hpp>
#include <tutti/loggers/detail/report.hpp>
#include <tutti/loggers/detail/terminal.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti {

/// Prints metrics as lines of text, at rank 0.
///
/// Every log_interval: `[epoch=1][batch=20/23]:` (or `[sample=640/6400]:` in a run that is not
/// counted in epochs) and below it every metric logged since the last time. Evaluations print about
/// ten signs of life and their metrics. The run's summary comes first, and at the end a table of
/// its best and last metrics with where the weights are and how to go on.
///
/// Numbers have four decimals; whole ones none, and those below 0.001 an exponent.
/// Source: MosaicML Composer, `composer.loggers.ConsoleLogger`.
struct ConsoleLogger final {
  static constexpr std::string_view name = "ConsoleLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, BatchEnd, EpochEnd, FitStart, FitEnd, EvalStart, EvalBatchEnd, EvalEnd,
                       PredictStart>;

  Time log_interval = "1ba";   ///< in ep or ba; >= 1
  std::FILE* stream = stderr;  ///< where to; stays open
  bool summary = true;         ///< what the run is first, and at the end what came of it

  /// What it holds while it runs; not an option.
  struct Run {
    detail::LatestValues metrics{};
    detail::LatestValues losses{};  // of training, the last ones
    detail::Report report{};
    std::int64_t last_batch = 0;  // that was printed
    std::int64_t eval_total = -1;
    bool speaks = true;
  } run{};

  /// Throws std::invalid_argument when log_interval is not in ep or ba or less than 1.
  void validate() const;

  void apply(Init, const State& state) { run.speaks = state.rank == 0; }
  void apply(FitStart, const State& state) {
    print_summary(state);
    run.report.begin(state);
  }
  void apply(PredictStart, const State& state) { print_summary(state); }

  void apply(BatchEnd, const State& state) {
    if (log_interval.unit() == TimeUnit::batch && due(state.timestamp.batch)) {
      print_train(state);
    }
  }
  void apply(EpochEnd, const State& state) {
    if (log_interval.unit() == TimeUnit::epoch && due(state.timestamp.epoch)) {
      print_train(state);
    }
  }
  void apply(FitEnd, const State& state);

  void apply(EvalStart, const State& state) {
    print_summary(state);
    run.eval_total = state.dataloader_len;
  }
  void apply(EvalBatchEnd, const State& state);
  void apply(EvalEnd, const State& state);

  /// Keeps the numbers until they are due.
  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t) {
    if (run.speaks) {
      run.metrics.set(metrics);
    }
  }
  void log_hyperparameters(std::span<const Hyperparameter> values) { run.report.remember(values); }
  void log_result(const LoggedResult& result);
  void log_table(const LoggedTable& table, std::int64_t) {
    if (run.speaks) {
      detail::print(stream, std::string(table.name) + ": " + detail::table_text(table) + "\n");
    }
  }

 private:
  [[nodiscard]] bool due(std::int64_t count) const {
    return run.speaks && (count % log_interval.count() == 0 || run.last_batch == 0);
  }

  // One of at most ten evenly spaced batches, the first among them.
  [[nodiscard]] bool is_sign_of_life(std::int64_t batch) const;

  void print_train(const State& state);

  static std::string train_head(const State& state);

  [[nodiscard]] std::string eval_head(const State& state) const {
    const std::string total = run.eval_total >= 0 ? "/" + std::to_string(run.eval_total) : "";
    return "[Eval batch=" + std::to_string(state.eval_timestamp.batch) + total + "] Eval on " +
           state.dataloader_label + " data";
  }

  [[nodiscard]] detail::Look look() const;
  void print_summary(const State& state);
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void ConsoleLogger::validate() const {
  const TimeUnit unit = log_interval.unit();
  if ((unit != TimeUnit::epoch && unit != TimeUnit::batch) || log_interval.count() < 1) {
    throw std::invalid_argument("ConsoleLogger: log_interval is " + to_string(log_interval) +
                                ", expected at least 1ba or 1ep");
  }
}

TUTTI_INLINE void ConsoleLogger::apply(FitEnd, const State& state) {
  if (state.timestamp.batch != run.last_batch) {
    print_train(state);
  }
  run.metrics.clear();
}

TUTTI_INLINE void ConsoleLogger::log_result(const LoggedResult& result) {
  if (run.speaks && summary) {
    const std::vector<std::pair<std::string, double>> losses(run.losses.begin(), run.losses.end());
    detail::print(stream, run.report.end(result, losses, look()));
  }
}

TUTTI_INLINE void ConsoleLogger::apply(EvalBatchEnd, const State& state) {
  const std::int64_t batch = state.eval_timestamp.batch;
  if (run.speaks && batch != run.eval_total && is_sign_of_life(batch)) {
    detail::print(stream, eval_head(state) + "\n");
  }
}

TUTTI_INLINE void ConsoleLogger::apply(EvalEnd, const State& state) {
  std::string text = eval_head(state) + ":";
  run.report.evaluated(state);
  const std::string prefix = "metrics/" + state.dataloader_label + "/";
  for (const auto& [key, value] : run.metrics) {
    if (key.starts_with(prefix)) {
      text += "\n\t Eval " + key + ": " + detail::number_text(value);
    }
  }
  run.metrics.forget(prefix);
  if (run.speaks) {
    detail::print(stream, text + "\n");
  }
}

TUTTI_INLINE bool ConsoleLogger::is_sign_of_life(std::int64_t batch) const {
  const std::int64_t total = run.eval_total;
  if (total < 0) {
    return batch % 100 == 1;  // the length is not known
  }
  return total <= 10 || batch == 1 || (batch - 1) * 10 / total != (batch - 2) * 10 / total;
}

TUTTI_INLINE void ConsoleLogger::print_train(const State& state) {
  run.last_batch = state.timestamp.batch;
  if (!run.speaks) {
    return;
  }
  std::string text = train_head(state) + ":";
  for (const auto& [key, value] : run.metrics) {
    text += "\n\t Train " + key + ": " + detail::number_text(value);
    if (key.starts_with("loss/train/")) {
      run.losses.set(key, value);
    }
  }
  detail::print(stream, text + "\n");
  run.metrics.clear();
}

TUTTI_INLINE std::string ConsoleLogger::train_head(const State& state) {
  const TimeUnit unit = state.max_duration.unit();
  if (unit != TimeUnit::epoch) {
    return "[" + std::string(detail::unit_word(unit)) + "=" +
           std::to_string(state.timestamp.get(unit).count()) + "/" +
           std::to_string(state.max_duration.count()) + "]";
  }
  std::int64_t epoch = state.timestamp.epoch;
  std::int64_t batch = state.timestamp.batch_in_epoch;
  if (batch == 0 && epoch > 0) {  // just over: show its end
    --epoch;
    batch =
        state.dataloader_len >= 0 ? state.dataloader_len : state.previous_timestamp.batch_in_epoch;
  }
  std::string text = "[epoch=" + std::to_string(epoch + 1) + "][batch=" + std::to_string(batch);
  return text + (state.dataloader_len >= 0 ? "/" + std::to_string(state.dataloader_len) : "") + "]";
}

TUTTI_INLINE detail::Look ConsoleLogger::look() const {
  if (!detail::is_terminal(stream)) {
    return {};
  }
  return {.width = detail::terminal_width(stream), .colours = detail::allows_colours()};
}

TUTTI_INLINE void ConsoleLogger::print_summary(const State& state) {
  if (run.speaks && summary) {
    detail::print(stream, run.report.summary(state, look()));
  }
}

}  // namespace tutti

#endif
