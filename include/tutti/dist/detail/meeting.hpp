// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/dist/detail/door.hpp>
#include <tutti/dist/detail/restarts.hpp>

// Where the launchers of several machines meet: one of them serves, all agree on who is there, on
// ranks and on the next attempt. LibTorch-free.
//
//   a machine says   join(processes, host, address, port, place before, starts heard)
//                    beat, failed(status, why), told(signal), ended(status)
//   the meeting says beat, start(attempt, place), stop(why), told(signal), over(status, why)

namespace tutti::dist::detail {

enum class MachineSays : std::int64_t { join, beat, failed, told, ended };
enum class MeetingSays : std::int64_t { beat, start, stop, told, over };

struct MeetingOptions {
  int least = 1;  ///< machines
  int most = 1;
  std::chrono::milliseconds join_timeout{600'000};  ///< until `least` are there
  std::chrono::milliseconds last_call{30'000};      ///< from then on for more, up to `most`
  std::chrono::milliseconds silence{1'000};         ///< a machine that says nothing is gone
  std::chrono::milliseconds cleanup_timeout{30'000};
  int max_restarts = 0;
  std::chrono::milliseconds restart_delay{1'000};
  std::chrono::milliseconds min_uptime{5'000};
};

/// A machine's place in one attempt.
struct MeetingPlace {
  int restart_count = 0;  ///< attempts before this one, however they ended
  int joins = 0;  ///< those of them that ended since a machine joined, which are no failures
  int node_rank = 0;
  int nodes = 1;
  int base_rank = 0;
  int world_size = 1;
  std::string master_addr{};
  int master_port = 0;
};

/// What a machine says of itself when it joins.
struct Machine {
  int nproc = 1;
  std::string host{};
  std::string address{};  ///< at which others reach it
  int port = 0;           ///< a free one of it
  int before = -1;        ///< its place in the attempt before; -1: it is new
};

/// The agreement itself.
class Meeting final : public DoorServer {
 public:
  Meeting(int listening, const std::string& token, const MeetingOptions& options);

  /// Until the run is over and all machines know it.
  void serve();

 private:
  enum class Phase : std::uint8_t { gathering, running, stopping, over };

  struct Member {
    Machine machine{};
    bool joined = false;
    bool runs = false;   // in this attempt
    bool ended = false;  // its ranks have
    int status = 0;
    int starts = 0;  // that were sent to it
    Clock::time_point heard = Clock::now();
  };

  void joined(int client, const std::string& address) override;
  void received(int client, const std::string& message) override;
  void left(int client) override;

  void tick();
  void gather();
  void start();
  void look_for_silence();
  void stop(int status, const std::string& why, bool counts);
  void next();
  void end(int status, const std::string& why);
  void tell(int client, MeetingSays what) {
    send(client, Packed().number(number_of(what)).bytes());
  }
  static std::int64_t number_of(MeetingSays what) { return static_cast<std::int64_t>(what); }

  [[nodiscard]] int count_joined() const;
  [[nodiscard]] bool anybody_runs() const;

  MeetingOptions options_;
  Restarts restarts_;
  std::map<int, Member> members_;
  Phase phase_ = Phase::gathering;
  Clock::time_point since_ = Clock::now();       // of the phase
  Clock::time_point not_before_ = Clock::now();  // of the next attempt
  Clock::time_point started_ = Clock::now();     // of the attempt
  Clock::time_point beaten_ = Clock::now();
  Clock::time_point enough_ = Clock::time_point();  // since when there are enough machines
  int status_ = 0;
  int joins_ = 0;       // attempts that ended since a machine joined
  bool counts_ = true;  // the stop is a failure
  bool told_ = false;
};

/// A process that serves the meeting, as long as this object lives.
class MeetingProcess {
 public:
  /// Serves at host:port when that is an address of this machine that nobody serves at yet; else
  /// running() is false. Call it in a program with one thread.
  MeetingProcess(const std::string& host, int port, const std::string& token,
                 const MeetingOptions& options);
  MeetingProcess(const MeetingProcess&) = delete;
  MeetingProcess& operator=(const MeetingProcess&) = delete;
  ~MeetingProcess();

  [[nodiscard]] bool running() const noexcept { return pid_ > 0; }

  /// Waits until all machines know that the run is over.
  void finish();

 private:
  pid_t pid_ = -1;
};

/// A launcher's end of it.
class MeetingClient {
 public:
  using Clock = std::chrono::steady_clock;

  struct Order {
    MeetingSays what = MeetingSays::beat;  ///< beat: nothing is ordered
    MeetingPlace place{};
    int number = 0;  ///< the signal, or the status
    std::string why{};
  };

  /// Throws std::runtime_error when there is no meeting in time or it refuses the token.
  MeetingClient(const std::string& host, int port, const std::string& token,
                const MeetingOptions& options);

  /// This machine's address, as the others see it.
  [[nodiscard]] std::string address() const { return door_.own_address(); }

  /// This machine is there, for the first attempt or the next one.
  void join(const Machine& machine);
  void failed(int status, const std::string& why);
  void told(int signal);
  void ended(int status);

  /// What is ordered within `most`; beats go out meanwhile. Of a meeting that is silent, or gone,
  /// the order is over with status 1.
  Order order(std::chrono::milliseconds most);

 private:
  void send(const Packed& message);
  void beat();

  DoorClient door_;
  std::chrono::milliseconds silence_;
  bool lost_ = false;
  int starts_ = 0;  // that it has heard
  Order over_{};    // once it has been given
  Clock::time_point heard_ = Clock::now();
  Clock::time_point beaten_ = Clock::now();
};

}  // namespace tutti::dist::detail

#include <tutti/dist/detail/meeting_rules.hpp>  // defines them
