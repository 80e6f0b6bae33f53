// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

// One process that a launcher starts, and where what it says goes.

namespace tutti::dist::detail {

/// A file that a child writes to: one of the user's, or one without a name.
class Output {
 public:
  Output() = default;  ///< the launcher's own

  /// path: appended to; empty: a temporary file. Throws std::runtime_error.
  explicit Output(const std::string& path) {
    if (!path.empty()) {
      fd_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    } else {
      const char* folder = std::getenv("TMPDIR");
      std::string name =
          std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/tutti-run-XXXXXX";
      fd_ = ::mkostemp(name.data(), O_APPEND | O_CLOEXEC);
      ::unlink(name.c_str());
    }
    if (fd_ < 0) {
      throw std::runtime_error("cannot open '" + (path.empty() ? "a temporary file" : path) +
                               "': " + std::strerror(errno));
    }
  }
  Output(Output&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Output& operator=(Output&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Output() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  [[nodiscard]] bool captured() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }

  /// The last bytes of it.
  [[nodiscard]] std::string tail(off_t most = 16384) const;

 private:
  int fd_ = -1;
};

/// A program that is not there or cannot be run.
struct CannotStart : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a child is started with.
struct ChildOptions {
  std::vector<std::string> words;      ///< the program and its arguments
  std::vector<std::string> variables;  ///< all of its environment, "NAME=value"
  bool reads_input = false;            ///< gets the launcher's standard input
  int shared_file = -1;                ///< stays open in it; -1: none
};

/// A process in a group of its own, which is told to end when the launcher is gone.
class Child {
 public:
  /// Throws CannotStart when the program cannot be started.
  Child(const ChildOptions& options, Output out, Output error)
      : out_(std::move(out)), error_(std::move(error)) {
    std::vector<char*> words = pointers(options.words);
    std::vector<char*> variables = pointers(options.variables);
    std::array<int, 2> report{};
    if (::pipe2(report.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error(std::string("cannot make a pipe: ") + std::strerror(errno));
    }
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      become(words, variables, options, parent);
      const int reason = errno;
      [[maybe_unused]] const auto told = ::write(report[1], &reason, sizeof reason);
      ::_exit(127);
    }
    int reason = errno;
    ::close(report[1]);
    const bool started = pid_ > 0 && ::read(report[0], &reason, sizeof reason) <= 0;
    ::close(report[0]);
    if (!started) {
      if (pid_ > 0) {
        ::waitpid(pid_, nullptr, 0);
      }
      throw CannotStart("cannot start '" + options.words.front() + "': " + std::strerror(reason));
    }
    ::setpgid(pid_, pid_);
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        running_(std::exchange(other.running_, false)),
        told_(other.told_),
        status_(other.status_),
        out_(std::move(other.out_)),
        error_(std::move(other.error_)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (running_) {
      kill(SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const Output& out() const { return out_; }
  [[nodiscard]] const Output& error() const { return error_; }

  /// Whether it still runs.
  bool running();

  /// Its exit status, the number of the signal that ended it as 128 + signal.
  [[nodiscard]] int code() const {
    return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  }

  [[nodiscard]] bool ended_badly() const { return !running_ && status_ != 0; }
  [[nodiscard]] bool ended_well() const { return !running_ && status_ == 0; }

  /// It has ended badly, and not since it was told to.
  [[nodiscard]] bool failed() const { return ended_badly() && !told_; }

  /// Sends a signal to it and to all that it has started.
  void kill(int signal);

  /// Kills it for what it did itself, so that it counts as failed.
  void strike();

 private:
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (const std::string& text : texts) {
      out.push_back(const_cast<char*>(text.c_str()));
    }
    out.push_back(nullptr);
    return out;
  }

  // In the child; returns when the program could not be started.
  void become(const std::vector<char*>& words, const std::vector<char*>& variables,
              const ChildOptions& options, pid_t parent) const;

  pid_t pid_ = -1;
  bool running_ = true;
  bool told_ = false;
  int status_ = 0;
  Output out_;
  Output error_;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::string Output::tail(off_t most) const {
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp(size, off_t{0}, most)), '\0');
  const ssize_t got = ::pread(fd_, text.data(), text.size(), std::max(off_t{0}, size - most));
  text.resize(static_cast<std::size_t>(std::max(ssize_t{0}, got)));
  return text;
}

TUTTI_INLINE bool Child::running() {
  if (running_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
    running_ = false;
    if (told_) {
      ::kill(-pid_, SIGKILL);  // what it has left behind
    }
  }
  return running_;
}

TUTTI_INLINE void Child::kill(int signal) {
  if (running_) {
    told_ = true;
    ::kill(-pid_, signal);
  }
}

TUTTI_INLINE void Child::strike() {
  if (running_) {
    ::kill(-pid_, SIGKILL);
  }
}

TUTTI_INLINE void Child::become(const std::vector<char*>& words,
                                const std::vector<char*>& variables, const ChildOptions& options,
                                pid_t parent) const {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) {
    ::_exit(1);  // it was gone before
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.shared_file >= 0) {
    ::fcntl(options.shared_file, F_SETFD, 0);
  }
  if (!options.reads_input) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
  }
  if (out_.captured()) {
    ::dup2(out_.fd(), 1);
  }
  if (error_.captured()) {
    ::dup2(error_.fd(), 2);
  }
  ::execvpe(words[0], words.data(), variables.data());
}

}  // namespace tutti::dist::detail

#endif
