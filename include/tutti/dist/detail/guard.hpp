// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

// Ends what a launcher has started when the launcher itself is killed.

namespace tutti::dist::detail {

/// The variable that every process of a launcher inherits, with the launcher's own value.
inline constexpr const char* launch_variable = "TUTTI_LAUNCH";

/// A value that no other launcher has.
std::string launch_mark();

/// All of a file of /proc; empty when it is gone or belongs to somebody else.
std::string proc_file(const std::string& process, const char* name);

/// The processes whose environment has `mark` ("NAME=value") and all that descend from them,
/// whichever group or session they are in; neither this process nor those that are dead already.
std::vector<pid_t> marked_processes(std::string_view mark);

/// Sends a signal to all of marked_processes(). Returns how many there were.
std::size_t signal_marked(std::string_view mark, int signal);

/// Kills all of marked_processes() and waits, up to 2 s, until they are gone.
void kill_marked(std::string_view mark);

/// These signals wait, for sigtimedwait() or until the end of its life.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& signals) { ::sigprocmask(SIG_BLOCK, &signals, &before_); }
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

/// A process that outlives the launcher by the time that it takes to end its ranks: SIGTERM, and
/// SIGKILL when they are still there `grace` later. It watches a socket that only the launcher
/// holds open, so it also learns of `kill -9`. A launcher that ends by itself lets it go.
class Guard {
 public:
  /// mark: "NAME=value", in the environment of all that is to be ended. who: named in what it says.
  /// Call it before anything is started. Throws std::runtime_error when there can be no further
  /// process.
  Guard(std::string mark, std::chrono::milliseconds grace, const char* who = "tutti-run")
      : who_(who) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw std::runtime_error(std::string("cannot make a pair of sockets: ") +
                               std::strerror(errno));
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[1]);
      watch(ends[0], mark, grace, who);
    }
    ::close(ends[0]);
    launcher_ = ends[1];
    if (pid_ < 0) {
      const int reason = errno;
      ::close(launcher_);
      throw std::runtime_error(std::string("cannot start a process: ") + std::strerror(reason));
    }
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    if (::send(launcher_, "", 1, MSG_NOSIGNAL) != 1) {  // it has ended by itself
      std::fprintf(stderr,
                   "%s: the guard of this run (pid %d) was killed, so that nobody would have ended "
                   "the run's processes had the launcher been killed, too\n",
                   who_, pid_);
    }
    ::close(launcher_);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

 private:
  // In the guard. It holds nothing of the launcher's open but where messages go.
  [[noreturn]] static void watch(int launcher, const std::string& mark,
                                 std::chrono::milliseconds grace, const char* who) {
    ::setsid();
    ::prctl(PR_SET_NAME, "tutti-guard");
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
      ::signal(signal, SIG_IGN);
    }
    ::dup2(launcher, 0);
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, 1);
    close_others();
    char ended = 0;
    ssize_t got = 0;
    while ((got = ::read(0, &ended, 1)) < 0 && errno == EINTR) {
    }
    if (got == 0) {
      end_all(mark, grace, who);
    }
    ::_exit(0);
  }

  static void close_others();

  static void end_all(const std::string& mark, std::chrono::milliseconds grace, const char* who);

  const char* who_;
  pid_t pid_ = -1;
  int launcher_ = -1;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::string launch_mark() {
  return std::to_string(::getpid()) + '-' +
         std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
}

TUTTI_INLINE std::string proc_file(const std::string& process, const char* name) {
  std::string text;
  const int file = ::open(("/proc/" + process + "/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; file >= 0 && (got = ::read(file, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  if (file >= 0) {
    ::close(file);
  }
  return text;
}

TUTTI_INLINE std::vector<pid_t> marked_processes(std::string_view mark) {
  std::map<pid_t, pid_t> parents;
  std::map<pid_t, bool> found;
  const std::string entry = std::string(1, '\0') + std::string(mark) + '\0';
  DIR* const processes = ::opendir("/proc");
  for (const dirent* each = nullptr;
       processes != nullptr && (each = ::readdir(processes)) != nullptr;) {
    const pid_t pid = std::atoi(each->d_name);
    const std::string stat = pid > 0 ? proc_file(each->d_name, "stat") : std::string();
    const std::size_t name_end = stat.rfind(") ");  // "17 (a name) S 1 ...": state, parent
    if (name_end == std::string::npos || stat[name_end + 2] == 'Z' || pid == ::getpid()) {
      continue;
    }
    parents[pid] = std::atoi(stat.c_str() + name_end + 4);
    found[pid] = (std::string(1, '\0') + proc_file(each->d_name, "environ")).find(entry) !=
                 std::string::npos;
  }
  if (processes != nullptr) {
    ::closedir(processes);
  }
  for (bool more = true; more;) {
    more = false;
    for (const auto& [pid, parent] : parents) {
      const auto above = found.find(parent);
      if (!found[pid] && above != found.end() && above->second) {
        found[pid] = more = true;
      }
    }
  }
  std::vector<pid_t> marked;
  for (const auto& [pid, is] : found) {
    if (is) {
      marked.push_back(pid);
    }
  }
  return marked;
}

TUTTI_INLINE std::size_t signal_marked(std::string_view mark, int signal) {
  const std::vector<pid_t> marked = marked_processes(mark);
  for (const pid_t pid : marked) {
    ::kill(pid, signal);
  }
  return marked.size();
}

TUTTI_INLINE void kill_marked(std::string_view mark) {
  for (int round = 0; round < 100 && signal_marked(mark, SIGKILL) > 0; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TUTTI_INLINE void Guard::close_others() {
  std::vector<int> others;
  DIR* const all = ::opendir("/proc/self/fd");
  for (const dirent* each = nullptr; all != nullptr && (each = ::readdir(all)) != nullptr;) {
    others.push_back(std::atoi(each->d_name));
  }
  for (const int other : others) {
    if (other > 2) {
      ::close(other);
    }
  }
}

TUTTI_INLINE void Guard::end_all(const std::string& mark, std::chrono::milliseconds grace,
                                 const char* who) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + grace;
  std::size_t left = signal_marked(mark, SIGTERM);
  if (left > 0) {
    std::fprintf(stderr, "%s: the launcher was killed; its %zu processes are told to end\n", who,
                 left);
  }
  while (left > 0 && Clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left = marked_processes(mark).size();
  }
  kill_marked(mark);
}

}  // namespace tutti::dist::detail

#endif
