// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/csv.hpp>

namespace tutti {

TUTTI_INLINE void CSVLogger::validate() const {
  expect(!filename.empty(), "CSVLogger: filename is empty; name the file.");
  expect(metrics_interval >= 1, "CSVLogger: metrics_interval", metrics_interval, "1 or more");
  expect(flush_interval >= 1, "CSVLogger: flush_interval", flush_interval, "1 or more");
}

TUTTI_INLINE void CSVLogger::apply(Init, const State& state) {
  run.speaks = state.rank == 0;
  if (run.speaks) {
    run.table.open(std::string(name), run_path(filename, state));
  }
}

TUTTI_INLINE void CSVLogger::apply(AfterLoad, const State& state) {
  run.table.begin(state.timestamp.batch, overwrite);
}

TUTTI_INLINE void CSVLogger::apply(BatchEnd, const State& state) {
  if (state.timestamp.batch % flush_interval == 0) {
    sync(state);
  }
}

TUTTI_INLINE void CSVLogger::close(const State& state) {
  if (run.table.is_open()) {
    const bool written = run.table.has_begun();
    run.table.close();
    if (written) {
      detail::upload_file(remote_file_name, run.table.path(), state);
    }
  }
}

TUTTI_INLINE void CSVLogger::log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step) {
  if (run.speaks) {
    for (const LoggedMetric& metric : metrics) {
      run.table.set(step, metric.name, metric.value);
    }
  }
}

TUTTI_INLINE void CSVLogger::sync(const State& state) {
  if (run.table.is_open()) {
    run.table.sync();
    detail::upload_file(remote_file_name, run.table.path(), state);
  }
}

}  // namespace tutti
