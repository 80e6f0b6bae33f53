// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti {

/// The history of one metric: parallel columns, one row per value.
struct TimeSeries {
  std::vector<Timestamp> timestamps;  ///< when
  std::vector<double> values;         ///< what
};

/// Keeps everything that is logged, on every rank; for tests, notebooks and small studies.
///
///     trainer.get<tutti::InMemoryLogger>().latest("loss/train/total")
///
/// Source: MosaicML Composer, `composer.loggers.InMemoryLogger`.
struct InMemoryLogger final {
  static constexpr std::string_view name = "InMemoryLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, FitStart, FitEnd, EvalStandaloneStart, EvalStandaloneEnd, PredictStart,
                       PredictEnd>;

  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::map<std::string, TimeSeries, std::less<>> data{};  ///< by metric, in the order logged
  std::map<std::string, HyperparameterValue, std::less<>> hyperparameters{};  ///< last values
  std::map<std::string, std::string, std::less<>> tables{};  ///< JSON: columns and data

  /// What it holds while it runs; not an option.
  struct Run {
    const State* state = nullptr;  ///< where the run is; null outside of one
    Timestamp ended{};             ///< where fit() has ended; its last evaluations come after that
  } run{};

  /// Throws c10::ValueError when metrics_interval is less than 1.
  void validate() const {
    expect(metrics_interval >= 1, "InMemoryLogger: metrics_interval", metrics_interval,
           "1 or more");
  }

  void apply(Init, const State&) { run.state = nullptr; }
  void apply(FitStart, const State& state) { run.state = &state; }
  void apply(FitEnd, const State& state) {
    run.ended = state.timestamp;
    run.state = nullptr;
  }
  void apply(EvalStandaloneStart, const State& state) { run.state = &state; }
  void apply(EvalStandaloneEnd, const State&) { run.state = nullptr; }
  void apply(PredictStart, const State& state) { run.state = &state; }
  void apply(PredictEnd, const State&) { run.state = nullptr; }
  void close(const State&) { run.state = nullptr; }

  /// Adds a value to each metric's history; outside of a run only the batch is known of the time.
  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values);
  void log_table(const LoggedTable& table, std::int64_t) {
    tables.insert_or_assign(std::string(table.name), detail::table_text(table));
  }

  /// The history of a metric. Throws c10::Error with the names that exist.
  [[nodiscard]] const TimeSeries& series(std::string_view metric) const {
    const auto found = data.find(metric);
    if (found == data.end()) {
      std::string names;
      for (const auto& [key, values] : data) {
        names += (names.empty() ? "" : ", ") + key;
      }
      TUTTI_CHECK(false, "no metric called \"", metric,
                  "\" was logged; there are: ", names.empty() ? "(none)" : names);
    }
    return found->second;
  }

  /// The last value of a metric. Throws c10::Error with the names that exist.
  [[nodiscard]] double latest(std::string_view metric) const {
    return series(metric).values.back();
  }
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void InMemoryLogger::log_metrics(std::span<const LoggedMetric> metrics,
                                              std::int64_t step) {
  Timestamp now = run.state != nullptr ? run.state->timestamp : run.ended;
  now.batch = step;
  for (const LoggedMetric& metric : metrics) {
    auto found = data.find(metric.name);
    if (found == data.end()) {
      found = data.emplace(std::string(metric.name), TimeSeries{}).first;
    }
    found->second.timestamps.push_back(now);
    found->second.values.push_back(metric.value);
  }
}

TUTTI_INLINE void InMemoryLogger::log_hyperparameters(std::span<const Hyperparameter> values) {
  for (const Hyperparameter& value : values) {
    hyperparameters.insert_or_assign(std::string(value.name), value.value);
  }
}

}  // namespace tutti

#endif
