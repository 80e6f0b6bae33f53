// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/csv_table.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes the metrics as a table: a row for each step, a column for each metric, "step" first.
///
///     step,time/batch,loss/train/total,metrics/test/MulticlassAccuracy
///     0,0,2.302,
///     1,1,1.988,0.41
///
/// A metric that comes later is a new column; a cell without a value is empty, nan and inf are
/// written so. The table is whole at any moment that an epoch or an evaluation ends. A resumed run
/// goes on behind the row of its checkpoint's step.
/// Source: Lightning, `lightning.pytorch.loggers.CSVLogger`.
struct CSVLogger final {
  static constexpr std::string_view name = "CSVLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, AfterLoad, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  std::string filename = "{run_folder}/metrics.csv";  ///< with placeholders as in checkpoint names
  /// Where it goes in a RemoteUploader's store, with every flush to the disk; empty: nowhere.
  std::string remote_file_name = "{run_name}/metrics.csv";
  bool overwrite = false;             ///< a run that begins at 0 may replace the file
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::int64_t flush_interval = 100;  ///< batches between flushes to the disk; >= 1

  /// What it holds while it runs; not an option.
  struct Run {
    detail::CsvTable table{};
    bool speaks = true;
  } run{};

  /// Throws c10::ValueError when an option is out of range.
  void validate() const;

  void apply(Init, const State& state);
  void apply(AfterLoad, const State& state);
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) { run.table.flush(); }
  void apply(EvalEnd, const State&) { run.table.flush(); }
  void apply(FitEnd, const State& state) { sync(state); }
  void close(const State& state);

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);

 private:
  void sync(const State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/csv.inl.hpp>
#endif
