// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/json_lines.hpp>

namespace tutti {

TUTTI_INLINE void JSONLinesLogger::validate() const {
  expect(!filename.empty(), "JSONLinesLogger: filename is empty; name the file.");
  expect(metrics_interval >= 1, "JSONLinesLogger: metrics_interval", metrics_interval, "1 or more");
  expect(flush_interval >= 1, "JSONLinesLogger: flush_interval", flush_interval, "1 or more");
}

TUTTI_INLINE void JSONLinesLogger::apply(Init, const State& state) {
  run.speaks = state.rank == 0 || !rank_zero_only;
  if (run.speaks) {
    if (!rank_zero_only) {
      detail::check_one_file_per_rank("JSONLinesLogger: filename", filename, state);
      detail::check_remote_file("JSONLinesLogger", remote_file_name, state);
    }
    run.file.open(std::string(name), state.output_path(run_path(filename, state)), "filename");
  }
}

TUTTI_INLINE void JSONLinesLogger::apply(AfterLoad, const State& state) {
  const std::int64_t step = state.timestamp.batch;
  const std::string start =
      detail::json_line("start", step,
                        ", \"run_name\": " + detail::json_utf8(state.run_name) +
                            ", \"rank\": " + std::to_string(state.rank) +
                            ", \"world_size\": " + std::to_string(state.world_size));
  if (run.speaks) {
    detail::bring_back(remote_file_name, run.file.path(), state);
  }
  run.file.begin(step > 0 || state.autoresume, overwrite, start, /*cut=*/true);
  run.latest.give_again(state, *this);
  write_values();  // a line of its own: what follows may have the same names
}

TUTTI_INLINE void JSONLinesLogger::apply(BatchEnd, const State& state) {
  if (run.step < state.timestamp.batch) {  // the next step's have their line when it ends
    write_values();
  }
  if (state.timestamp.batch % flush_interval == 0) {
    sync(state);
  } else {
    run.file.flush();
  }
}

TUTTI_INLINE void JSONLinesLogger::apply(FitEnd, const State& state) {
  write_all();
  sync(state);
}

TUTTI_INLINE void JSONLinesLogger::close(const State& state) {
  if (run.file.is_open()) {
    write_values();
    const std::string_view status = detail::run_failed() ? "failed"
                                    : run.stopped        ? "stopped"
                                                         : "finished";
    run.file.add(detail::json_line("end", state.timestamp.batch,
                                   ", \"status\": " + detail::json_utf8(status)));
    const bool written = run.file.has_begun();
    run.file.close();
    if (written) {
      detail::upload_file(remote_file_name, run.file.path(), state);
    }
  }
}

TUTTI_INLINE void JSONLinesLogger::log_metrics(std::span<const LoggedMetric> metrics,
                                               std::int64_t step) {
  if (!run.speaks) {
    return;
  }
  if (step != run.step) {
    write_values();
    run.step = step;
  }
  detail::append_json_metrics(run.values, metrics);
  run.latest.add(metrics, step);
}

TUTTI_INLINE void JSONLinesLogger::log_hyperparameters(std::span<const Hyperparameter> values) {
  add(detail::json_line("hyperparameters", -1,
                        ", \"values\": {" + detail::json_members(values) + "}"));
}

TUTTI_INLINE void JSONLinesLogger::log_table(const LoggedTable& table, std::int64_t step) {
  add(detail::json_line(table, step));
}

TUTTI_INLINE void JSONLinesLogger::sync(const State& state) {
  run.file.sync();
  if (run.speaks) {
    detail::upload_file(remote_file_name, run.file.path(), state);
  }
}

TUTTI_INLINE void JSONLinesLogger::add(const std::string& text) {
  if (run.speaks) {
    run.file.add(text);
  }
}

TUTTI_INLINE void JSONLinesLogger::write_values() {
  if (!run.values.empty()) {
    add(detail::json_line("metrics", run.step, ", \"values\": {" + run.values + "}"));
    run.values.clear();
  }
}

TUTTI_INLINE void JSONLinesLogger::write_all() {
  write_values();
  run.file.flush();
}

}  // namespace tutti
