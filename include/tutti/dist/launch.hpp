// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/dist/detail/child.hpp>
#include <tutti/dist/detail/guard.hpp>

/// Starts the processes of a run on this machine; the program `tutti-run` is launch() and its
/// options. LibTorch-free.
namespace tutti::dist {

/// What to start, and as which ranks. Names and defaults are those of Composer's launcher.
struct LaunchOptions {
  int nproc = 1;              ///< processes on this machine; >= 1
  int world_size = 0;         ///< of all machines; 0: nproc
  int base_rank = -1;         ///< rank of this machine's first process; -1: node_rank * nproc
  int node_rank = -1;         ///< -1: base_rank / nproc
  std::string master_addr{};  ///< empty: 127.0.0.1 when this is the only machine
  int master_port = 0;        ///< 0: a free one when this is the only machine
  /// Files of all but local rank 0, which has the terminal: with {rank}, {local_rank},
  /// {world_size}, {local_world_size}, {node_rank}. Empty: temporary ones.
  std::string stdout_file{};
  std::string stderr_file{};
  std::chrono::milliseconds cleanup_timeout{30'000};  ///< from SIGTERM to SIGKILL
  bool verbose = false;
  std::vector<std::string> command{};  ///< the program and its arguments; $RANK and others in them
                                       ///< are filled in for each process

  /// Fills in what follows from the rest.
  /// Throws std::invalid_argument naming what does not fit.
  void complete();
};

namespace detail {

void refuse_unless(bool holds, const std::string& what);

/// A port of this machine that nobody listens on.
int free_port();

/// `text` with "$NAME" and "${NAME}" replaced where there is such a variable, and a leading "~".
std::string expanded(std::string_view text, const std::map<std::string, std::string>& with);

/// The variables of the rank with that local rank.
inline std::map<std::string, std::string> place(const LaunchOptions& options, int local_rank) {
  return {{"RANK", std::to_string(options.base_rank + local_rank)},
          {"WORLD_SIZE", std::to_string(options.world_size)},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(options.nproc)},
          {"NODE_RANK", std::to_string(options.node_rank)},
          {"MASTER_ADDR", options.master_addr},
          {"MASTER_PORT", std::to_string(options.master_port)},
          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};
}

std::string file_of(std::string pattern, const std::map<std::string, std::string>& where);

/// A value of launch_variable that no other launcher has.
std::string launch_mark();

Child start(const LaunchOptions& options, int local_rank, const std::string& mark);

// Says what a rank that failed by itself has left.
void report(const Child& child, int rank);

// Waits for all children. Signals of the launcher are blocked and taken here.
class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  /// mark: of all that the children start, see marked_processes().
  Watch(const LaunchOptions& options, std::vector<Child>& children, std::string mark)
      : options_(options), children_(children), mark_(std::move(mark)) {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
      sigaddset(&signals_, signal);
    }
  }

  [[nodiscard]] const sigset_t& signals() const { return signals_; }

  // Returns the run's exit status.
  int operator()();

 private:
  [[nodiscard]] int rank_of(std::size_t child) const {
    return options_.base_rank + static_cast<int>(child);
  }

  bool anybody_runs();

  // It has ended badly by itself: not since another failed, nor of the signal that went on to it.
  [[nodiscard]] bool failed(const Child& child) const;

  void kill_all();

  // The first time as it is, and then it takes as long as it takes: a checkpoint may be written.
  void forward(int signal);

  void look_for_failures();

  void end_others();

  void say(const char* what);

  const LaunchOptions& options_;
  std::vector<Child>& children_;
  std::string mark_;
  sigset_t signals_{};
  int first_failure_ = 0;
  int forwarded_ = 0;  // a signal
  std::optional<Clock::time_point> killed_at_;
};

}  // namespace detail

inline void LaunchOptions::complete() {
  using detail::refuse_unless;
  refuse_unless(!command.empty(), "there is no program to start; write tutti-run -n 2 ./program");
  refuse_unless(nproc >= 1, "--nproc is " + std::to_string(nproc) + ", expected 1 or more");
  world_size = world_size == 0 ? nproc : world_size;
  refuse_unless(world_size >= nproc, "--world_size is " + std::to_string(world_size) +
                                         ", expected at least --nproc, " + std::to_string(nproc));
  const bool alone = world_size == nproc;
  refuse_unless(alone || base_rank >= 0 || node_rank >= 0,
                "with several machines set --node_rank or --base_rank");
  node_rank = alone && node_rank < 0 && base_rank < 0 ? 0 : node_rank;
  base_rank = base_rank < 0 ? node_rank * nproc : base_rank;
  refuse_unless(node_rank >= 0 || base_rank % nproc == 0,
                "--base_rank is " + std::to_string(base_rank) +
                    ", which is no multiple of --nproc, " + std::to_string(nproc) +
                    "; set --node_rank, too");
  node_rank = node_rank < 0 ? base_rank / nproc : node_rank;
  refuse_unless(base_rank + nproc <= world_size, "ranks " + std::to_string(base_rank) + " to " +
                                                     std::to_string(base_rank + nproc - 1) +
                                                     " do not fit into --world_size, " +
                                                     std::to_string(world_size));
  refuse_unless(alone || (!master_addr.empty() && master_port > 0),
                "with several machines set --master_addr and --master_port");
  refuse_unless(master_port >= 0 && master_port <= 65535,
                "--master_port is " + std::to_string(master_port) + ", expected 1 to 65535");
  master_addr = master_addr.empty() ? "127.0.0.1" : master_addr;
  master_port = master_port == 0 ? detail::free_port() : master_port;
}

/// Starts the processes and waits for them.
///
/// When one fails, the others get SIGTERM and, cleanup_timeout later, SIGKILL; what each that
/// failed by itself has written last is shown. SIGINT, SIGTERM and SIGHUP go on to all of them,
/// which then end in their own time, unless one fails; a second one kills. When this process is
/// killed, another one that it starts for that (see Guard) ends all that the ranks have started.
/// Call it in a program with one thread.
/// Returns the exit status of the first that failed, 128 + signal where one ended it; else 0.
/// Throws std::invalid_argument for options that do not fit, std::runtime_error when the program
/// cannot be started.
/// Source: MosaicML Composer, `composer.cli.launcher`.
int launch(LaunchOptions options);

}  // namespace tutti::dist

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE void refuse_unless(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument("tutti-run: " + what);
  }
}

TUTTI_INLINE int free_port() {
  const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      handle >= 0 && ::bind(handle, plain, size) == 0 && ::getsockname(handle, plain, &size) == 0;
  ::close(handle);
  refuse_unless(found, "no port is free; set --master_port");
  return ntohs(address.sin_port);
}

TUTTI_INLINE std::string expanded(std::string_view text,
                                  const std::map<std::string, std::string>& with) {
  std::string out;
  if (const auto home = with.find("HOME");
      home != with.end() && (text == "~" || text.starts_with("~/"))) {
    out = home->second;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    std::size_t end = 1;
    std::string_view name;
    if (text.starts_with("${")) {
      end = std::min(text.find('}'), text.size() - 1) + 1;
      name = text.substr(2, end - 3);
    } else if (text.front() == '$') {
      while (end < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) {
        ++end;
      }
      name = text.substr(1, end - 1);
    }
    const auto found = with.find(std::string(name));
    out += found != with.end() && !name.empty() ? std::string_view(found->second)
                                                : text.substr(0, end);
    text.remove_prefix(end);
  }
  return out;
}

TUTTI_INLINE std::string file_of(std::string pattern,
                                 const std::map<std::string, std::string>& where) {
  for (const auto& [field, variable] :
       {std::pair("{rank}", "RANK"), std::pair("{local_rank}", "LOCAL_RANK"),
        std::pair("{world_size}", "WORLD_SIZE"),
        std::pair("{local_world_size}", "LOCAL_WORLD_SIZE"),
        std::pair("{node_rank}", "NODE_RANK")}) {
    for (std::size_t at = 0; (at = pattern.find(field, at)) != std::string::npos;) {
      pattern.replace(at, std::strlen(field), where.at(variable));
    }
  }
  return pattern;
}

TUTTI_INLINE std::string launch_mark() {
  return std::to_string(::getpid()) + '-' +
         std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
}

TUTTI_INLINE Child start(const LaunchOptions& options, int local_rank, const std::string& mark) {
  auto where = place(options, local_rank);
  where[launch_variable] = mark;
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos && !text.starts_with("TORCHELASTIC_") &&
        !text.starts_with("GROUP_RANK=")) {  // of a launcher around this one
      all.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  for (const auto& [name, value] : where) {
    all[name] = value;
  }
  ChildOptions child{.words = {}, .variables = {}, .reads_input = false};
  child.reads_input = local_rank == 0 && ::isatty(0) == 0;
  for (const std::string& word : options.command) {
    child.words.push_back(expanded(word, all));
  }
  for (const auto& [name, value] : all) {
    child.variables.push_back(name + '=' + value);
  }
  const bool own = local_rank == 0;
  return {child, own ? Output() : Output(file_of(options.stdout_file, where)),
          own ? Output() : Output(file_of(options.stderr_file, where))};
}

TUTTI_INLINE void report(const Child& child, int rank) {
  std::fprintf(stderr, "tutti-run: rank %d (pid %d) ended with status %d%s\n", rank, child.pid(),
               child.code(), child.code() > 128 ? ", a signal + 128" : "");
  for (const auto& [output, name] :
       {std::pair(&child.out(), "stdout"), std::pair(&child.error(), "stderr")}) {
    const std::string text = output->captured() ? output->tail() : std::string();
    if (!text.empty()) {
      std::fprintf(stderr, "---------- begin of rank %d's %s ----------\n%s\n", rank, name,
                   text.c_str());
      std::fprintf(stderr, "---------- end of rank %d's %s ----------\n", rank, name);
    }
  }
}

TUTTI_INLINE int Watch::operator()() {
  while (anybody_runs()) {
    constexpr timespec moment{0, 100'000'000};
    const int signal = ::sigtimedwait(&signals_, nullptr, &moment);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      forward(signal);
    }
    look_for_failures();
    if (killed_at_ && Clock::now() >= *killed_at_) {
      say("is killed");
      kill_all();
      killed_at_ = Clock::now() + std::chrono::hours(1);
    }
  }
  look_for_failures();
  int status = first_failure_;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (failed(children_[i])) {
      report(children_[i], rank_of(i));
    }
    status = status == 0 ? children_[i].code() : status;
  }
  if (status != 0) {
    signal_marked(mark_, SIGKILL);  // what is left of a run that failed
  }
  return status;
}

TUTTI_INLINE bool Watch::anybody_runs() {
  bool any = false;
  for (Child& child : children_) {
    any = child.running() || any;
  }
  return any;
}

TUTTI_INLINE bool Watch::failed(const Child& child) const {
  const bool of_signal = child.code() == 128 + forwarded_ || child.code() == 128 + SIGKILL;
  return child.failed() || (forwarded_ != 0 && child.ended_badly() && !of_signal);
}

TUTTI_INLINE void Watch::kill_all() {
  for (Child& child : children_) {
    child.kill(SIGKILL);
  }
  signal_marked(mark_, SIGKILL);
}

TUTTI_INLINE void Watch::forward(int signal) {
  if (forwarded_ != 0) {
    kill_all();
    return;
  }
  for (Child& child : children_) {
    child.kill(signal);
  }
  forwarded_ = signal;
}

TUTTI_INLINE void Watch::look_for_failures() {
  for (std::size_t i = 0; i < children_.size() && first_failure_ == 0; ++i) {
    if (failed(children_[i])) {
      first_failure_ = children_[i].code();
      end_others();
    }
  }
}

TUTTI_INLINE void Watch::end_others() {
  killed_at_ = Clock::now() + options_.cleanup_timeout;
  if (forwarded_ != 0) {  // they have been told, and wait for one that is gone, perhaps
    say("is killed unless it ends in time, since another rank failed after the signal");
    return;
  }
  say("is told to end, since another rank failed");
  for (Child& child : children_) {
    child.kill(SIGTERM);
  }
}

TUTTI_INLINE void Watch::say(const char* what) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].running()) {
      std::fprintf(stderr, "tutti-run: rank %d (pid %d) %s\n", rank_of(i), children_[i].pid(),
                   what);
    }
  }
}

}  // namespace tutti::dist::detail

namespace tutti::dist {

TUTTI_INLINE int launch(LaunchOptions options) {
  options.complete();
  const std::string mark = detail::launch_mark();
  const std::string entry = std::string(detail::launch_variable) + '=' + mark;
  const detail::Guard guard(entry, options.cleanup_timeout);
  std::vector<detail::Child> children;
  detail::Watch watch(options, children, entry);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &watch.signals(), &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { ::sigprocmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{before};
  for (int local_rank = 0; local_rank < options.nproc; ++local_rank) {
    children.push_back(detail::start(options, local_rank, mark));
    if (options.verbose) {
      std::fprintf(stderr, "tutti-run: rank %d of %d is pid %d\n", options.base_rank + local_rank,
                   options.world_size, children.back().pid());
    }
  }
  return watch();
}

}  // namespace tutti::dist

#endif
