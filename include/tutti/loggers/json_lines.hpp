// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes everything as JSON Lines: one object a line, for programs to read, also while the run
/// goes on. This is the interface to services and dashboards that have no logger here.
///
///     {"type": "metrics", "step": 7, "time": 1767225600.125, "values": {"loss/train/total": 0.5}}
///
/// docs/loggers.md lists the objects. A step's metrics make one line, written when the batch ends;
/// NaN and infinities are the strings "NaN", "Infinity", "-Infinity"; text is UTF-8. A line is
/// written whole. A resumed run appends, with a line of type "start" that tells at which step.
struct JSONLinesLogger final {
  static constexpr std::string_view name = "JSONLinesLogger";
  static constexpr bool reads_gradients = false;
  using events = types<Init, AfterLoad, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  std::string filename =
      "{run_folder}/metrics.jsonl";  ///< with placeholders as in checkpoint names
  /// Where it goes in a RemoteUploader's store, with every flush to the disk; empty: nowhere.
  std::string remote_file_name = "{run_name}/metrics.jsonl";
  bool overwrite = false;             ///< a run that begins at 0 may replace the file
  bool rank_zero_only = true;         ///< false: filename needs {rank}
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::int64_t flush_interval = 100;  ///< batches between flushes to the disk; >= 1

  /// What has been received and not yet written; not an option.
  struct Memory {
    detail::LogFile file{};
    std::string values{};  // of `step`, as the inside of a JSON object
    std::int64_t step = 0;
    bool speaks = true;
  } memory{};

  void validate() const;

  void apply(Init, const State& state);
  void apply(AfterLoad, const State& state);

  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) { write_all(); }
  void apply(EvalEnd, const State&) { write_all(); }
  void apply(FitEnd, const State& state);

  /// Ends the file with a line that tells how the run ended.
  void close(const State& state);

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values);
  void log_table(const LoggedTable& table, std::int64_t step);

 private:
  void sync(const State& state);

  // One object; step: left out when negative. more: its other members, each after a comma.
  static std::string line(std::string_view type, std::int64_t step, const std::string& more);

  static std::string quoted(std::string_view text) {
    return detail::json_quoted(detail::utf8(text));
  }
  // quoted(), without its copies for the names that metrics have as a rule.
  static void append_quoted(std::string& text, std::string_view word);
  static std::string list(std::span<const std::string> cells);
  static void append(std::string& text, double value);
  static void append(std::string& text, const HyperparameterValue& value);

  void add(const std::string& text);
  void write_values();
  void write_all();
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void JSONLinesLogger::validate() const {
  expect(!filename.empty(), "JSONLinesLogger: filename is empty; name the file.");
  expect(metrics_interval >= 1, "JSONLinesLogger: metrics_interval", metrics_interval, "1 or more");
  expect(flush_interval >= 1, "JSONLinesLogger: flush_interval", flush_interval, "1 or more");
}

TUTTI_INLINE void JSONLinesLogger::apply(Init, const State& state) {
  memory.speaks = state.rank == 0 || !rank_zero_only;
  if (memory.speaks) {
    if (!rank_zero_only) {
      detail::check_one_file_per_rank("JSONLinesLogger: filename", filename, state);
      detail::check_remote_file("JSONLinesLogger", remote_file_name, state);
    }
    memory.file.open(std::string(name), state.output_path(run_path(filename, state)), "filename");
  }
}

TUTTI_INLINE void JSONLinesLogger::apply(AfterLoad, const State& state) {
  const std::int64_t step = state.timestamp.batch;
  const std::string start = line("start", step,
                                 ", \"run_name\": " + quoted(state.run_name) +
                                     ", \"rank\": " + std::to_string(state.rank) +
                                     ", \"world_size\": " + std::to_string(state.world_size));
  memory.file.begin(step > 0, overwrite, start, /*cut=*/true);
}

TUTTI_INLINE void JSONLinesLogger::apply(BatchEnd, const State& state) {
  if (memory.step < state.timestamp.batch) {  // the next step's have their line when it ends
    write_values();
  }
  if (state.timestamp.batch % flush_interval == 0) {
    sync(state);
  } else {
    memory.file.flush();
  }
}

TUTTI_INLINE void JSONLinesLogger::apply(FitEnd, const State& state) {
  write_all();
  sync(state);
}

TUTTI_INLINE void JSONLinesLogger::close(const State& state) {
  if (memory.file.is_open()) {
    write_values();
    const std::string_view status = detail::run_failed() ? "failed" : "finished";
    memory.file.add(line("end", state.timestamp.batch, ", \"status\": " + quoted(status)));
    const bool written = memory.file.has_begun();
    memory.file.close();
    if (written) {
      detail::upload_file(remote_file_name, memory.file.path(), state);
    }
  }
}

TUTTI_INLINE void JSONLinesLogger::log_metrics(std::span<const LoggedMetric> metrics,
                                               std::int64_t step) {
  if (!memory.speaks) {
    return;
  }
  if (step != memory.step) {
    write_values();
    memory.step = step;
  }
  for (const LoggedMetric& metric : metrics) {
    memory.values += memory.values.empty() ? "" : ", ";
    append_quoted(memory.values, metric.name);
    memory.values += ": ";
    append(memory.values, metric.value);
  }
}

TUTTI_INLINE void JSONLinesLogger::log_hyperparameters(std::span<const Hyperparameter> values) {
  std::string text;
  for (const Hyperparameter& value : values) {
    text += (text.empty() ? "" : ", ") + quoted(value.name) + ": ";
    append(text, value.value);
  }
  add(line("hyperparameters", -1, ", \"values\": {" + text + "}"));
}

TUTTI_INLINE void JSONLinesLogger::log_table(const LoggedTable& table, std::int64_t step) {
  std::string rows;
  for (const auto& row : table.rows) {
    rows += (rows.empty() ? "" : ", ") + list(row);
  }
  add(line("table", step,
           ", \"name\": " + quoted(table.name) + ", \"columns\": " + list(table.columns) +
               ", \"rows\": [" + rows + "]"));
}

TUTTI_INLINE void JSONLinesLogger::sync(const State& state) {
  memory.file.sync();
  if (memory.speaks) {
    detail::upload_file(remote_file_name, memory.file.path(), state);
  }
}

TUTTI_INLINE std::string JSONLinesLogger::line(std::string_view type, std::int64_t step,
                                               const std::string& more) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::string thousandths = std::to_string(1000 + ms % 1000).substr(1);
  std::string text = "{\"type\": " + quoted(type);
  text += step < 0 ? "" : ", \"step\": " + std::to_string(step);
  text += ", \"time\": " + std::to_string(ms / 1000) + "." + thousandths;
  return text + more + "}\n";
}

TUTTI_INLINE void JSONLinesLogger::append_quoted(std::string& text, std::string_view word) {
  bool plain = true;
  for (const char c : word) {
    plain = plain && c >= ' ' && c <= '~' && c != '"' && c != '\\';
  }
  if (plain) {
    text.append("\"").append(word).append("\"");
  } else {
    text += quoted(word);
  }
}

TUTTI_INLINE std::string JSONLinesLogger::list(std::span<const std::string> cells) {
  std::string text;
  for (const std::string& cell : cells) {
    text += (text.empty() ? "" : ", ") + quoted(cell);
  }
  return "[" + text + "]";
}

TUTTI_INLINE void JSONLinesLogger::append(std::string& text, double value) {
  std::array<char, 32> digits{};
  if (std::isfinite(value)) {
    text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
  } else {
    text += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  }
}

TUTTI_INLINE void JSONLinesLogger::append(std::string& text, const HyperparameterValue& value) {
  value.visit([&](const auto& v) {
    using T = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<T, bool>) {
      text += v ? "true" : "false";
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      text += std::to_string(v);
    } else if constexpr (std::is_same_v<T, double>) {
      append(text, v);
    } else {
      text += quoted(v);
    }
  });
}

TUTTI_INLINE void JSONLinesLogger::add(const std::string& text) {
  if (memory.speaks) {
    memory.file.add(text);
  }
}

TUTTI_INLINE void JSONLinesLogger::write_values() {
  if (!memory.values.empty()) {
    add(line("metrics", memory.step, ", \"values\": {" + memory.values + "}"));
    memory.values.clear();
  }
}

TUTTI_INLINE void JSONLinesLogger::write_all() {
  write_values();
  memory.file.flush();
}

}  // namespace tutti

#endif
