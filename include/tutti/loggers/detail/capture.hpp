// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>

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

#if TUTTI_BODIES

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

#endif
