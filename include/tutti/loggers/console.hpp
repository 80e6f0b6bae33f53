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
#include <tutti/loggers/console.inl.hpp>
#endif
