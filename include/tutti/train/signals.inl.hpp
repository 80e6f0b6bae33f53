// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/signals.hpp>

namespace tutti::train::detail {

TUTTI_INLINE std::int64_t nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TUTTI_INLINE void on_signal(int signal) {
  constexpr std::int64_t second = 1'000'000'000;
  const std::int64_t now = nanoseconds();
  int none = 0;
  if (received_signal.compare_exchange_strong(none, signal)) {
    received_at.store(now);
  } else if (now - received_at.load() > second) {
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
    ::raise(signal);  // arrives when this returns
  }
}

TUTTI_INLINE Handlers& handlers() {
  static Handlers instance;
  return instance;
}

TUTTI_INLINE bool HandlerSlot::hold(bool replace) {
  if (holders > 0) {
    ++holders;
    return true;
  }
  struct sigaction now{};
  if (::sigaction(signal, nullptr, &now) != 0 ||
      (!replace && ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL))) {
    return false;
  }
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  ::sigemptyset(&ours.sa_mask);
  holders = ::sigaction(signal, &ours, &before) == 0 ? 1 : 0;
  return holders > 0;
}

TUTTI_INLINE void HandlerSlot::release() {
  struct sigaction now{};
  if (--holders == 0 && ::sigaction(signal, nullptr, &now) == 0 &&
      (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == on_signal) {
    ::sigaction(signal, &before, nullptr);
  }
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE SignalScope::SignalScope(bool on, bool replace) : on_(on) {
  if (!on) {
    return;
  }
  detail::Handlers& handlers = detail::handlers();
  const std::scoped_lock lock(handlers.mutex);
  if (handlers.scopes++ == 0) {
    detail::received_signal.store(0);
  }
  for (int i = 0; i < 3; ++i) {
    const bool of_slurm = handlers.slots[i].signal == SIGUSR1;
    holds_[i] =
        (!of_slurm || std::getenv("SLURM_JOB_ID") != nullptr) && handlers.slots[i].hold(replace);
  }
}

TUTTI_INLINE SignalScope::~SignalScope() {
  if (!on_) {
    return;
  }
  detail::Handlers& handlers = detail::handlers();
  const std::scoped_lock lock(handlers.mutex);
  --handlers.scopes;
  for (int i = 0; i < 3; ++i) {
    if (holds_[i]) {
      handlers.slots[i].release();
    }
  }
}

}  // namespace tutti::train
