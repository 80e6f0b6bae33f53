// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/file.hpp>

namespace tutti::detail {

TUTTI_INLINE void Capture::start(int file, bool out, bool err) {
  stop();
  if (file < 0) {
    return;
  }
  take(streams_[0], out, STDOUT_FILENO);
  take(streams_[1], err, STDERR_FILENO);
  if (streams_[0].saved < 0 && streams_[1].saved < 0) {
    return;
  }
  std::fflush(stdout);
  child_ = ::fork();
  if (child_ == 0) {
    copy(file);
  }
  if (child_ < 0) {
    TORCH_WARN("FileLogger: cannot capture stdout and stderr: ", std::strerror(errno));
  }
  for (Stream& stream : streams_) {
    if (stream.saved >= 0) {
      if (child_ > 0) {
        ::dup2(stream.pipe[1], stream.number);
      }
      ::close(stream.pipe[0]);
      ::close(stream.pipe[1]);
    }
  }
}

TUTTI_INLINE void Capture::stop() {
  if (child_ > 0) {
    std::fflush(stdout);
    std::fflush(stderr);
  }
  for (Stream& stream : streams_) {
    if (stream.saved >= 0) {
      ::dup2(stream.saved, stream.number);
      ::close(std::exchange(stream.saved, -1));
    }
  }
  if (child_ > 0) {  // a daemon that still holds the pipe keeps the copier, not us
    for (int i = 0; i < 500 && ::waitpid(child_, nullptr, WNOHANG) == 0; ++i) {
      ::usleep(2000);
    }
    child_ = -1;
  }
}

TUTTI_INLINE void Capture::take(Stream& stream, bool wanted, int number) {
  if (!wanted || ::isatty(number) == 1 || ::pipe2(stream.pipe.data(), O_CLOEXEC) != 0) {
    return;
  }
  stream.number = number;
  stream.saved = ::fcntl(number, F_DUPFD_CLOEXEC, 3);
  if (stream.saved < 0) {  // closed: nothing to pass on to
    ::close(stream.pipe[0]);
    ::close(stream.pipe[1]);
  }
}

TUTTI_INLINE void Capture::put(int to, const char* text, std::size_t size) {
  while (size > 0) {
    const ssize_t done = ::write(to, text, size);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      return;
    }
    text += done;
    size -= static_cast<std::size_t>(done);
  }
}

TUTTI_INLINE void Capture::split(int file, Line& line, std::string_view text) {
  for (const char c : text) {
    if (line.size == 0) {
      line.prefix.copy(line.text.data(), line.prefix.size());
      line.size = line.prefix.size();
    }
    if (c != '\n') {
      line.text[line.size++] = c;
    }
    if (c == '\n' || line.size + 1 == line.text.size()) {
      line.text[line.size++] = '\n';
      put(file, line.text.data(), std::exchange(line.size, 0));
    }
  }
}

TUTTI_INLINE void Capture::close_others(int file) const {
  const auto kept = [&](int fd) {
    return fd == file || fd == streams_[0].saved || fd == streams_[1].saved ||
           (streams_[0].saved >= 0 && fd == streams_[0].pipe[0]) ||
           (streams_[1].saved >= 0 && fd == streams_[1].pipe[0]);
  };
  const long most = ::sysconf(_SC_OPEN_MAX);
  for (int fd = 0; fd < (most > 0 && most < 65536 ? most : 65536); ++fd) {
    if (!kept(fd)) {
      ::close(fd);
    }
  }
}

}  // namespace tutti::detail

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
  if (run.file.is_open()) {
    detail::bring_back(remote_file_name, run.file.path(), state);
  }
  run.file.begin(state.timestamp.batch > 0 || state.autoresume, overwrite);
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
