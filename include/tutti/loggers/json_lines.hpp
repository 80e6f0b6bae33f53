// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/bring_back.hpp>
#include <tutti/loggers/detail/json_line.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/step_metrics.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes everything as JSON Lines: one object a line, for programs to read, also while the run
/// goes on. This is the interface to services and dashboards that have no logger here.
///
///     {"type": "metrics", "step": 7, "time": 1767225600.125, "values": {"loss/train/total": 0.5}}
///
/// docs/loggers.md lists the objects. A step's metrics make one line, written when the batch ends;
/// NaN and infinities are the strings "NaN", "Infinity", "-Infinity"; text is UTF-8. A line is
/// written whole. A resumed run appends, with a line of type "start" that tells at which step, and
/// what had been logged at that step when the checkpoint was written.
struct JSONLinesLogger final {
  static constexpr std::string_view name = "JSONLinesLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, AfterLoad, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  std::string filename =
      "{run_folder}/metrics.jsonl";  ///< with placeholders as in checkpoint names
  /// Where it goes in a RemoteUploader's store, with every flush to the disk; empty: nowhere.
  std::string remote_file_name = "{run_name}/metrics.jsonl";
  bool overwrite = false;             ///< a run that begins at 0 may replace the file
  bool rank_zero_only = true;         ///< false: filename needs {rank}
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::int64_t flush_interval = 100;  ///< batches between flushes to the disk; >= 1

  /// What it holds while it runs; not an option.
  struct Run {
    detail::LogFile file{};
    std::string values{};  // of `step`, as the inside of a JSON object
    std::int64_t step = 0;
    detail::StepMetrics latest{};  // which a checkpoint keeps
    bool speaks = true;
    bool stopped = false;  // by a signal
  } run{};

  void validate() const;

  void apply(Init, const State& state);
  void apply(AfterLoad, const State& state);

  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) { write_all(); }
  void apply(EvalEnd, const State&) { write_all(); }
  void apply(FitEnd, const State& state);

  /// Ends the file with a line that tells how the run ended.
  void close(const State& state);

  /// Saves the metrics of the checkpoint's step, which a resumed run writes again.
  void save(Archive& archive) const { run.latest.save(archive); }
  void load(const Archive& archive) { run.latest.load(archive); }

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values);
  void log_table(const LoggedTable& table, std::int64_t step);
  void log_result(const LoggedResult& result) { run.stopped = !result.complete; }

 private:
  void sync(const State& state);

  void add(const std::string& text);
  void write_values();
  void write_all();
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/json_lines.inl.hpp>
#endif
