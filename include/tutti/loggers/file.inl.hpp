// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/file.hpp>

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
