// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

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
/// then ends the run instead of letting the others wait for their timeout.
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

namespace tutti::dist {

namespace detail {

TUTTI_INLINE Heartbeat::Heartbeat(Environment environment) : place_(std::move(environment)) {
  if (page_ && place_.local_rank < page_->ranks()) {
    slot_ = &page_->slot(place_.local_rank);
  }
  flight_recorder().belongs_to(place_, slot_);
  if (slot_ == nullptr) {
    return;
  }
  slot_->pid.store(process_);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  thread_ = std::thread([this] { tick(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TUTTI_INLINE Heartbeat::~Heartbeat() {
  if (!thread_.joinable()) {
    return;
  }
  if (::getpid() != process_) {  // a copy of the process, which has no such thread
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
  flight_recorder().belongs_to(place_, nullptr);
  slot_->tick.store(0);
}

TUTTI_INLINE void Heartbeat::tick() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    slot_->tick.fetch_add(1);
    if (slot_->wants_dump.exchange(0) != 0) {
      flight_recorder().dump();
    }
    wake_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

TUTTI_INLINE const Heartbeat& heartbeat(const Environment& environment) {
  static const Heartbeat only(environment);
  return only;
}

}  // namespace detail

TUTTI_INLINE void start_heartbeat(const Environment& environment) {
  static_cast<void>(detail::heartbeat(environment));
}

TUTTI_INLINE std::string first_fault(std::chrono::milliseconds patience) {
  const detail::RunPage* const page = detail::heartbeat(Environment::read()).page();
  if (page == nullptr) {
    return {};
  }
  const auto limit = std::chrono::steady_clock::now() + patience;
  std::string fault = page->fault();
  while (fault.empty() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fault = page->fault();
  }
  return fault;
}

}  // namespace tutti::dist

#endif
