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
#include <tutti/loggers/detail/capture.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/text.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes everything as text, each rank into its file, with what the program prints between it.
///
///     [hyperparameter]: lr: 0.1
///     [metric][batch=7]: loss/train/total: 0.5000
///     [stderr]: Warning: ...
///
/// A resumed run appends. Lines are written whole.
/// Source: MosaicML Composer, `composer.loggers.FileLogger`.
struct FileLogger final {
  static constexpr std::string_view name = "FileLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, AfterLoad, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  std::string filename =
      "{run_folder}/logs-rank{rank}.txt";  ///< placeholders as in checkpoint names
  /// Where it goes in a RemoteUploader's store, with every flush to the disk; empty: nowhere.
  std::string remote_file_name = "{run_name}/logs-rank{rank}.txt";
  bool capture_stdout = true;         ///< copies what is printed into the file, unless stdout is a
  bool capture_stderr = true;         ///< terminal: a progress bar could not be drawn any more
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::int64_t buffer_size = 100;     ///< lines that wait, at most to the end of a batch; >= 1
  std::int64_t flush_interval = 100;  ///< batches between flushes to the disk; >= 1
  bool overwrite = false;             ///< a run that begins at 0 may replace the file

  /// What it holds while it runs; not an option.
  struct Run {
    detail::LogFile file{};
    detail::Capture capture{};
    std::int64_t lines = 0;  // that wait
  } run{};

  void validate() const;

  void apply(Init, const State& state);
  void apply(AfterLoad, const State& state);
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) { flush(); }
  void apply(EvalEnd, const State&) { flush(); }
  void apply(FitEnd, const State& state);

  /// Gives stdout and stderr back and closes the file.
  void close(const State& state);

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values);
  void log_table(const LoggedTable& table, std::int64_t step);

 private:
  // Every line of the text with its prefix.
  static std::string prefixed(const std::string& prefix, std::string_view text);

  void add(const std::string& text, std::int64_t lines);
  void flush();
  void sync(const State& state);
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void FileLogger::validate() const {
  expect(!filename.empty(), "FileLogger: filename is empty; name the file.");
  expect(buffer_size >= 1, "FileLogger: buffer_size", buffer_size, "1 or more");
  expect(metrics_interval >= 1, "FileLogger: metrics_interval", metrics_interval, "1 or more");
  expect(flush_interval >= 1, "FileLogger: flush_interval", flush_interval, "1 or more");
}

TUTTI_INLINE void FileLogger::apply(Init, const State& state) {
  detail::check_one_file_per_rank("FileLogger: filename", filename, state);
  detail::check_remote_file("FileLogger", remote_file_name, state);
  run.file.open(std::string(name), state.output_path(run_path(filename, state)), "filename");
}

TUTTI_INLINE void FileLogger::apply(AfterLoad, const State& state) {
  run.file.begin(state.timestamp.batch > 0, overwrite);
  run.lines = 0;
  run.capture.start(run.file.descriptor(), capture_stdout, capture_stderr);
}

TUTTI_INLINE void FileLogger::apply(BatchEnd, const State& state) {
  flush();
  if (state.timestamp.batch % flush_interval == 0) {
    sync(state);
  }
}

TUTTI_INLINE void FileLogger::apply(FitEnd, const State& state) {
  flush();
  sync(state);
}

TUTTI_INLINE void FileLogger::close(const State& state) {
  run.capture.stop();
  const bool written = run.file.has_begun();
  run.file.close();
  if (written) {
    detail::upload_file(remote_file_name, run.file.path(), state);
  }
}

TUTTI_INLINE void FileLogger::log_metrics(std::span<const LoggedMetric> metrics,
                                          std::int64_t step) {
  const std::string head = "[metric][batch=" + std::to_string(step) + "]: ";
  std::string text;
  for (const LoggedMetric& metric : metrics) {
    text.append(head).append(metric.name).append(": ");
    text += detail::number_text(metric.value) + "\n";
  }
  add(text, static_cast<std::int64_t>(metrics.size()));
}

TUTTI_INLINE void FileLogger::log_hyperparameters(std::span<const Hyperparameter> values) {
  std::string text;
  for (const Hyperparameter& value : values) {
    text += prefixed("[hyperparameter]: ",
                     std::string(value.name) + ": " + detail::hyperparameter_text(value.value));
  }
  add(text, static_cast<std::int64_t>(values.size()));
}

TUTTI_INLINE void FileLogger::log_table(const LoggedTable& table, std::int64_t step) {
  add(prefixed("[table][batch=" + std::to_string(step) + "]: ",
               std::string(table.name) + ": " + detail::table_text(table)),
      1);
}

TUTTI_INLINE std::string FileLogger::prefixed(const std::string& prefix, std::string_view text) {
  std::string out;
  while (true) {
    const auto end = text.find('\n');
    out.append(prefix).append(text.substr(0, end)).append("\n");
    if (end == std::string_view::npos) {
      return out;
    }
    text.remove_prefix(end + 1);
  }
}

TUTTI_INLINE void FileLogger::add(const std::string& text, std::int64_t lines) {
  run.file.add(text);
  run.lines += lines;
  if (run.lines >= buffer_size) {
    flush();
  }
}

TUTTI_INLINE void FileLogger::flush() {
  run.file.flush();
  run.lines = 0;
}

TUTTI_INLINE void FileLogger::sync(const State& state) {
  run.file.sync();
  detail::upload_file(remote_file_name, run.file.path(), state);
}

}  // namespace tutti

#endif
