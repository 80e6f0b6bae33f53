// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti::detail {

// A CSV file of numbers that grows by a row for each step, and by columns as they come.
//
// The last row may still change, so it is written again with every flush(). A new column makes the
// file anew, through a second one that takes its name. A write that fails (a full disk, a lost
// share) warns once, and is tried again with the next. No function throws but open() and begin().
class CsvTable {
 public:
  CsvTable() = default;
  CsvTable(CsvTable&& other) noexcept { *this = std::move(other); }
  CsvTable& operator=(CsvTable&& other) noexcept;
  ~CsvTable() { close(); }

  // Makes the folders and the file. who: named in messages. Throws c10::Error with the system's
  // reason.
  void open(std::string who, const std::string& path);

  // A run that goes on keeps the rows up to its step, and goes on with that of the step itself; a
  // new one empties the file with `overwrite`. Throws c10::Error when there is something in it
  // otherwise, or when it is no such table.
  void begin(std::int64_t step, bool overwrite);

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] bool has_begun() const { return begun_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  // Sets a cell; the rows before are written when the step is another than the last one.
  void set(std::int64_t step, std::string_view column, double value);

  // Writes the last row, as far as it is known.
  void flush();

  // flush(), and to the disk.
  void sync();

  void close();

 private:
  struct Row {
    std::int64_t step = 0;
    std::vector<std::optional<double>> cells;  // of the columns but the step
    bool changed = false;
  };

  static std::vector<std::string> split(std::string_view line);
  static std::string quoted(std::string_view text);
  static void append(std::string& text, double value);

  [[nodiscard]] std::string header() const;
  [[nodiscard]] std::string line(const Row& row) const;
  [[nodiscard]] std::string content() const;
  void remake();
  bool put(int fd, std::string_view text, std::int64_t at);
  void complain(int reason);
  void wait_with(Row&& row);
  void forget_waiting();

  std::string who_;
  std::string path_;
  std::vector<std::string> columns_;
  std::size_t written_columns_ = 0;  // of the header in the file
  Row row_;
  std::deque<Row> waiting_;   // before it, that could not be written
  std::string waiting_text_;  // those rows, under columns_ unless it is stale
  bool is_stale_ = false;
  std::size_t cells_waiting_ = 0;
  std::int64_t lost_ = 0;    // rows for which there was no room
  std::int64_t row_at_ = 0;  // where the last row begins in the file
  int fd_ = -1;
  bool begun_ = false;
  bool failing_ = false;
};

}  // namespace tutti::detail

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
