// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/logger.hpp>

namespace tutti {

TUTTI_INLINE void Logger::add_sink(const Sink& sink) {
  sinks_.push_back(sink);
}

TUTTI_INLINE void Logger::clear() {
  sinks_.clear();
  wants_metrics_ = false;
  wants_images_ = false;
  wants_files_ = false;
}

TUTTI_INLINE void Logger::log_metrics(std::span<const LoggedMetric> metrics,
                                      std::int64_t step) const {
  for (const Sink& sink : sinks_) {
    const bool due = !within_batch_ || sink.interval == nullptr || *sink.interval <= 1 ||
                     step % *sink.interval == 0;
    if (sink.metrics != nullptr && due) {
      sink.metrics(sink.self, metrics, step);
    }
  }
}

TUTTI_INLINE void Logger::log_hyperparameters(std::span<const Hyperparameter> values) const {
  for (const Sink& sink : sinks_) {
    if (sink.hyperparameters != nullptr) {
      sink.hyperparameters(sink.self, values);
    }
  }
}

TUTTI_INLINE void Logger::log_images(const LoggedImages& images, std::int64_t step) const {
  for (const Sink& sink : sinks_) {
    if (sink.images != nullptr) {
      sink.images(sink.self, images, step);
    }
  }
}

TUTTI_INLINE void Logger::log_table(const LoggedTable& table, std::int64_t step) const {
  for (const Sink& sink : sinks_) {
    if (sink.table != nullptr) {
      sink.table(sink.self, table, step);
    }
  }
}

TUTTI_INLINE void Logger::upload_file(std::string_view remote_file_name,
                                      std::string_view path) const {
  for (const Sink& sink : sinks_) {
    if (sink.file != nullptr) {
      sink.file(sink.self, remote_file_name, path);
    }
  }
}

TUTTI_INLINE bool Logger::download_file(std::string_view remote_file_name,
                                        std::string_view path) const {
  for (const Sink& sink : sinks_) {
    if (sink.file_back != nullptr && sink.file_back(sink.self, remote_file_name, path)) {
      return true;
    }
  }
  return false;
}

TUTTI_INLINE void Logger::log_result(const LoggedResult& result) const {
  for (const Sink& sink : sinks_) {
    if (sink.result != nullptr) {
      sink.result(sink.self, result);
    }
  }
}

}  // namespace tutti
