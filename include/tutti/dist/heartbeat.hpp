// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/dist/detail/run_page.hpp>
#include <tutti/dist/environment.hpp>
#include <tutti/dist/flight_recorder.hpp>

/// How tutti-run knows that a rank lives, and a rank why the run ends. LibTorch-free.
namespace tutti::dist {

/// Tells the tutti-run that started this process, every 100 ms, that it lives; where another
/// launcher did, nothing. A process that is stopped, or swapped out, falls silent, and tutti-run
/// then ends the run instead of letting the others wait for their timeout. SIGQUIT to this process,
/// unless the program does something else at it, has it write its last collectives, and it goes on.
///
/// environment: the place of this process. Done by dist::initialize() and by the Trainer; calls
/// after the first do nothing.
void start_heartbeat(const Environment& environment = Environment::read());

/// Which rank failed first and where it was, as tutti-run knows it, one sentence without full
/// stop; waits for it up to `patience`. Empty when tutti-run has not started this process or knows
/// of no failure.
std::string first_fault(std::chrono::milliseconds patience = std::chrono::milliseconds(0));

namespace detail {

/// The thread that ticks.
class Heartbeat {
 public:
  explicit Heartbeat(Environment environment);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat();

  [[nodiscard]] const RunPage* page() const noexcept { return page_.get(); }

 private:
  void tick();

  std::unique_ptr<RunPage> page_ = RunPage::of_launcher();
  Environment place_;
  RankSlot* slot_ = nullptr;
  pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

/// That of this process; made by the first call.
const Heartbeat& heartbeat(const Environment& environment);

}  // namespace detail

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/heartbeat.inl.hpp>
#endif
