// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/heartbeat.hpp>

namespace tutti::dist {

namespace detail {

// Whose ranks SIGQUIT asks for a record; null: nobody's.
TUTTI_INLINE std::atomic<RankSlot*> asked_by_signal{nullptr};

// Asks for the record as the launcher does: what a signal may do is no more than that.
TUTTI_INLINE void ask_for_record(int /*signal*/) {
  if (RankSlot* const slot = asked_by_signal.load(); slot != nullptr) {
    slot->wants_dump.store(1);
  }
}

// A program that does something at SIGQUIT keeps that, as one that ignores it.
TUTTI_INLINE void take_quit(RankSlot* slot) {
  struct sigaction before{};
  if (::sigaction(SIGQUIT, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) {
    struct sigaction now{};
    now.sa_handler = ask_for_record;
    now.sa_flags = SA_RESTART;
    sigemptyset(&now.sa_mask);
    ::sigaction(SIGQUIT, &now, nullptr);
  }
  asked_by_signal.store(slot);
}

TUTTI_INLINE void leave_quit() {
  asked_by_signal.store(nullptr);
  struct sigaction now{};
  if (::sigaction(SIGQUIT, nullptr, &now) == 0 && now.sa_handler == ask_for_record) {
    ::signal(SIGQUIT, SIG_DFL);
  }
}

TUTTI_INLINE Heartbeat::Heartbeat(Environment environment) : place_(std::move(environment)) {
  if (page_ && place_.local_rank < page_->ranks()) {
    slot_ = &page_->slot(place_.local_rank);
  }
  flight_recorder().belongs_to(place_, slot_);
  if (slot_ == nullptr) {
    return;
  }
  slot_->pid.store(process_);
  take_quit(slot_);
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
  leave_quit();
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
