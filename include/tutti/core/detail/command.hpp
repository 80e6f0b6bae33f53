// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

/// Runs other programs; no shell is involved.
namespace tutti::detail {

/// The words of a command line, with quotes and backslashes as a shell has them, and nothing else
/// of it. Throws c10::ValueError when a quote is not closed.
std::vector<std::string> words_of(std::string_view command);

/// What a program left.
struct CommandResult {
  int status = 0;  ///< of its exit; -1: a signal ended it
  std::string out;
  std::string error;
};

/// A file without a name, for what a program writes.
class Scratch {
 public:
  Scratch() : fd_(::memfd_create("tutti-command", MFD_CLOEXEC)) {
    TUTTI_CHECK(fd_ >= 0, "cannot make a file in memory: ", std::strerror(errno));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { ::close(fd_); }

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] std::string text() const;

 private:
  int fd_;
};

/// Runs a program to its end. It has no standard input and a process group of its own, so that a
/// Ctrl-C that is meant for the run does not end it.
///
/// words: the program, looked up in PATH, and its arguments. Throws c10::Error when it cannot be
/// started or takes longer than `most`; then it is killed.
CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds most);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::vector<std::string> words_of(std::string_view command) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (std::exchange(inside, false)) {
        words.push_back(std::exchange(word, {}));
      }
      continue;
    }
    inside = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      word += command[++i];
    } else {
      word += c;
    }
  }
  TUTTI_CHECK_VALUE(quote == 0, "a command has a quote that is not closed: ", command);
  if (inside) {
    words.push_back(word);
  }
  return words;
}

TUTTI_INLINE std::string Scratch::text() const {
  std::string out;
  char buffer[4096];
  for (ssize_t got = 0;
       (got = ::pread(fd_, buffer, sizeof buffer, static_cast<off_t>(out.size()))) > 0;) {
    out.append(buffer, static_cast<std::size_t>(got));
  }
  return out;
}

TUTTI_INLINE CommandResult run_command(const std::vector<std::string>& words,
                                       std::chrono::milliseconds most) {
  TUTTI_CHECK_VALUE(!words.empty(), "a command is empty; expected a program and its arguments");
  std::vector<char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const Scratch out;
  const Scratch error;
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, out.fd(), 1);
  ::posix_spawn_file_actions_adddup2(&files, error.fd(), 2);
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t usual;
  ::sigemptyset(&none);
  ::sigemptyset(&usual);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP}) {
    ::sigaddset(&usual, signal);
  }
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  TUTTI_CHECK(failed == 0, "cannot start '", words[0], "': ", std::strerror(failed),
              "; install it, or give its whole path");
  const auto until = std::chrono::steady_clock::now() + most;
  std::chrono::milliseconds pause{1};
  int status = 0;
  bool late = false;
  for (pid_t ended = 0; (ended = ::waitpid(child, &status, late ? 0 : WNOHANG)) != child;) {
    TUTTI_CHECK(ended >= 0 || errno == EINTR, "cannot wait for '", words[0],
                "': ", std::strerror(errno));
    if (std::chrono::steady_clock::now() >= until) {
      ::kill(-child, SIGKILL);
      late = true;
    } else {
      ::usleep(static_cast<useconds_t>(pause.count()) * 1000);
      pause = pause.count() < 32 ? pause * 2 : std::chrono::milliseconds(50);
    }
  }
  TUTTI_CHECK(!late, "'", words[0], "' was killed after ", most.count() / 1000, " s");
  return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .out = out.text(),
          .error = error.text()};
}

}  // namespace tutti::detail

#endif
