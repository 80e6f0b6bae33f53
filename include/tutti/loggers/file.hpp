// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/bring_back.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/text.hpp>
#include <tutti/loggers/run_path.hpp>

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::detail {

// Copies what this process and its children print into a file, each line with its prefix, and lets
// it pass on to where it went before.
//
// A process of its own does the copying, not a thread: it outlives a crash, so the last words of a
// program that aborts reach both places. It makes system calls only, which is all that a child of a
// process with threads may do, and ends when every writer has closed its end.
class Capture {
 public:
  Capture() = default;
  Capture(Capture&& other) noexcept { *this = std::move(other); }
  Capture& operator=(Capture&& other) noexcept {
    stop();
    streams_ = std::exchange(other.streams_, {});
    child_ = std::exchange(other.child_, -1);
    return *this;
  }
  ~Capture() { stop(); }

  // file: open for appending. A stream that is a terminal is left alone. When the system refuses,
  // one warning says so.
  void start(int file, bool out, bool err);

  // Puts the streams back and waits until all that was printed has arrived.
  void stop();

 private:
  struct Stream {
    int number = -1;
    int saved = -1;  // where it went; -1: not captured
    std::array<int, 2> pipe{-1, -1};
  };

  static void take(Stream& stream, bool wanted, int number);

  // ---- In the copying process: no allocation, no locks ----------------------------------------
  struct Line {
    std::string_view prefix;
    std::array<char, 8192> text{};
    std::size_t size = 0;
  };

  static void put(int to, const char* text, std::size_t size);

  // Whole lines, and pieces of those that are too long, in one write each.
  static void split(int file, Line& line, std::string_view text);

  [[noreturn]] void copy(int file) const {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
      ::signal(signal, SIG_IGN);  // it goes on until the last word is said
    }
    std::array<Line, 2> lines{Line{"[stdout]: "}, Line{"[stderr]: "}};
    std::array<pollfd, 2> ends{};
    for (std::size_t i = 0; i < 2; ++i) {
      ends[i] = {streams_[i].saved >= 0 ? streams_[i].pipe[0] : -1, POLLIN, 0};
      if (streams_[i].saved >= 0) {
        ::close(streams_[i].pipe[1]);
      }
    }
    close_others(file);
    while (ends[0].fd >= 0 || ends[1].fd >= 0) {
      if (::poll(ends.data(), ends.size(), -1) < 0) {
        continue;
      }
      for (std::size_t i = 0; i < 2; ++i) {
        std::array<char, 4096> text{};
        const ssize_t got = ends[i].fd >= 0 && ends[i].revents != 0
                                ? ::read(ends[i].fd, text.data(), text.size())
                                : -1;
        if (got > 0) {
          put(streams_[i].saved, text.data(), static_cast<std::size_t>(got));
          split(file, lines[i], {text.data(), static_cast<std::size_t>(got)});
        } else if (got == 0) {
          if (lines[i].size > 0) {
            split(file, lines[i], "\n");
          }
          ends[i].fd = -1;
        }
      }
    }
    ::_exit(0);
  }

  // Devices and sockets of the trainer must not live as long as this process.
  void close_others(int file) const;

  std::array<Stream, 2> streams_{};
  pid_t child_ = -1;
};

}  // namespace tutti::detail

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
#include <tutti/loggers/file.inl.hpp>
#endif
