// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/sha2.hpp>
#include <tutti/dist/detail/child.hpp>
#include <tutti/dist/detail/door.hpp>
#include <tutti/dist/detail/guard.hpp>
#include <tutti/dist/detail/meeting.hpp>
#include <tutti/dist/detail/restarts.hpp>
#include <tutti/dist/detail/run_page.hpp>
#include <tutti/dist/detail/watch.hpp>

// What a launcher fills in and looks up before it starts anything.

namespace tutti::dist::detail {

void refuse_unless(bool holds, const std::string& what);

/// `port`, or for 0 any, when nobody has it; else 0.
int bound_port(int port);

/// A port of this machine that nobody listens on, another at each call. Rank 0 takes it a second or
/// minutes later: it is none of those that the kernel gives to sockets that ask for any.
int free_port();

/// `text` with "$NAME" and "${NAME}" replaced where there is such a variable, and a leading "~".
std::string expanded(std::string_view text, const std::map<std::string, std::string>& with);

std::string file_of(std::string pattern, const std::map<std::string, std::string>& where);

}  // namespace tutti::dist::detail

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
  /// {world_size}, {local_world_size}, {node_rank}, {restart_count}. Empty: temporary ones.
  std::string stdout_file{};
  std::string stderr_file{};
  std::chrono::milliseconds cleanup_timeout{30'000};  ///< from SIGTERM to SIGKILL
  int max_restarts = 0;                               ///< after failures; >= 0
  std::chrono::milliseconds restart_delay{1'000};  ///< before the first restart; it doubles to 30 s
  /// Two failures in a row, each sooner than that after its start, end the run; 0: they do not.
  std::chrono::milliseconds min_uptime{5'000};
  std::chrono::milliseconds monitor_interval{100};  ///< how often the ranks are looked at; > 0
  /// A rank that is stopped for so long, or ten times as long swapped out, is killed; 0: it is not.
  std::chrono::milliseconds health_timeout{1'000};
  /// A batch, or a callback between batches, that lasts for so long, and ten times the median of
  /// the batches before, ends the attempt; 0: it may last.
  std::chrono::milliseconds hang_timeout{300'000};
  /// Where ranks write their last collectives when the run fails, see FlightRecorder. Empty: a new
  /// one of TMPDIR. It is made when something is written.
  std::string flight_folder{};
  /// File with the token that ranks of several machines show each other, mode 0600. On one machine
  /// a token is made for each run.
  std::string token_file{};
  /// Where the launchers of several machines meet, "host:port": an address of one of them. They
  /// agree on ranks and attempts, so world_size, node_rank, base_rank, master_addr and master_port
  /// are not set. Needs token_file. Empty: they do not meet.
  std::string rdzv{};
  int least_nodes = 1;    ///< machines without which there is no attempt; with rdzv
  int nodes = 1;          ///< those of an attempt, as the launchers have agreed
  std::string address{};  ///< of this machine, at which the other launchers reach it; filled in
  int most_nodes = 1;     ///< machines that take part; others wait for a place; with rdzv
  std::chrono::milliseconds last_call{30'000};      ///< for more than least_nodes to come
  std::chrono::milliseconds node_timeout{1'000};    ///< a launcher that is silent for it is gone
  std::chrono::milliseconds join_timeout{600'000};  ///< until least_nodes are there
  bool verbose = false;
  std::vector<std::string> command{};  ///< the program and its arguments; $RANK and others in them
                                       ///< are filled in for each process

  /// Fills in what follows from the rest.
  /// Throws std::invalid_argument naming what does not fit.
  void complete();
};

namespace detail {

/// The variables of the rank with that local rank.
inline std::map<std::string, std::string> place(const LaunchOptions& options, int local_rank) {
  const std::string nodes =
      std::to_string(options.rdzv.empty() ? (options.world_size + options.nproc - 1) / options.nproc
                                          : options.nodes);
  return {{"RANK", std::to_string(options.base_rank + local_rank)},
          {"WORLD_SIZE", std::to_string(options.world_size)},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(options.nproc)},
          {"NODE_RANK", std::to_string(options.node_rank)},
          {"MASTER_ADDR", options.master_addr},
          {"MASTER_PORT", std::to_string(options.master_port)},
          {"GROUP_RANK", std::to_string(options.node_rank)},
          {"GROUP_WORLD_SIZE", nodes},
          {"ROLE_NAME", "default"},
          {"ROLE_RANK", std::to_string(options.base_rank + local_rank)},
          {"ROLE_WORLD_SIZE", std::to_string(options.world_size)},
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};
}

/// A run: its attempts one after the other.
class Run {
 public:
  explicit Run(LaunchOptions options);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() = default;

  /// Until the run is over. Returns its exit status.
  int operator()();

 private:
  Child start(int local_rank, const RunPage& page) const;

  // The same on all machines that meet.
  [[nodiscard]] std::string run_id() const;

  // The ranks of this machine, from start to end; `meeting`: of several machines, or null.
  Outcome attempt(MeetingClient* meeting);

  // The attempts of one machine, and of several that meet.
  int alone();
  int together();
  int meet(const std::string& host, int port, const MeetingOptions& rules);

  // Waits for that long. Returns the signal that has asked to end meanwhile; 0: none.
  static int asked_to_end_within(std::chrono::milliseconds pause);

  void summarize(const Outcome& outcome, std::chrono::milliseconds lasted) const;

  LaunchOptions options_;
  bool any_port_;
  std::string token_;  // empty: there is none
  std::string mark_ = launch_mark();
  std::string entry_ = std::string(launch_variable) + '=' + mark_;
  Restarts restarts_;
  int restart_count_ = 0;
  int joins_ = 0;  // those of them that used up no restart
};

}  // namespace detail

inline void LaunchOptions::complete() {
  using detail::refuse_unless;
  refuse_unless(!command.empty(), "there is no program to start; write tutti-run -n 2 ./program");
  refuse_unless(nproc >= 1, "--nproc is " + std::to_string(nproc) + ", expected 1 or more");
  refuse_unless(rdzv.empty() || !token_file.empty(),
                "--rdzv needs --token_file, the secret by which machines know each other");
  refuse_unless(least_nodes >= 1 && least_nodes <= most_nodes,
                "--nnodes is " + std::to_string(least_nodes) + ":" + std::to_string(most_nodes) +
                    ", expected LEAST:MOST with 1 <= LEAST <= MOST");
  refuse_unless(!rdzv.empty() || most_nodes == 1, "--nnodes needs --rdzv, where the machines meet");
  if (!rdzv.empty()) {
    world_size = nproc;  // until they have met
  }
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
  refuse_unless(max_restarts >= 0,
                "--max_restarts is " + std::to_string(max_restarts) + ", expected 0 or more");
  refuse_unless(max_restarts == 0 || alone,
                "--max_restarts with several machines needs --rdzv, where their launchers agree on "
                "the next attempt");
  refuse_unless(monitor_interval.count() > 0, "--monitor_interval is " +
                                                  std::to_string(monitor_interval.count()) +
                                                  " ms, expected more than 0");
  master_addr = master_addr.empty() ? "127.0.0.1" : master_addr;
  master_port = master_port == 0 ? detail::free_port() : master_port;
}

/// Starts the processes and waits for them.
///
/// When one fails, the others get SIGTERM and, cleanup_timeout later, SIGKILL; what each that
/// failed by itself has written last is shown. With max_restarts all are then started again, with
/// TORCHELASTIC_RESTART_COUNT one higher, and a Trainer with autoresume goes on from the last
/// checkpoint. SIGINT, SIGTERM and SIGHUP go on to all of them, SIGHUP as SIGTERM; they then end in
/// their own time, unless one fails; a second SIGINT or SIGTERM kills; none of them is started
/// again. A SIGHUP that is ignored, as under nohup, stays ignored. At SIGQUIT the ranks of this
/// machine write their last collectives to flight_folder, and go on. When this process is killed,
/// another one that it starts for that (see Guard) ends all that the ranks have started.
/// Call it in a program with one thread.
/// Returns the exit status of the last attempt: that of the first rank that failed, 128 + signal
/// where one ended it; else 0.
/// Throws std::invalid_argument for options that do not fit, std::runtime_error when the program
/// cannot be started.
/// Source: MosaicML Composer, `composer.cli.launcher`; PyTorch, `torch.distributed.run`.
int launch(LaunchOptions options);

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/launch.inl.hpp>
#endif
