// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <string_view>

#include <signal.h>

#include <tutti/config.hpp>

namespace tutti {

/// What fit() does after SIGTERM or SIGINT, or SIGUSR1 in a job of Slurm, once the batch is
/// finished and saved.
enum class OnSignal : std::uint8_t {
  exit,    ///< closes all policies and ends the process with status 128 + signal: for programs that
           ///< are nothing but a training run; those of cli::Program do it
  stop,    ///< returns; Trainer::stop_signal() says which it was
  ignore,  ///< fit() handles no signals
};

/// "exit", "stop", "ignore".
constexpr std::string_view to_string(OnSignal choice) {
  switch (choice) {
    case OnSignal::exit:
      return "exit";
    case OnSignal::stop:
      return "stop";
    case OnSignal::ignore:
      return "ignore";
  }
  return "unknown";
}

namespace train {

namespace detail {

inline std::atomic<int> received_signal{0};
inline std::atomic<std::int64_t> received_at{0};  // in nanoseconds
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t nanoseconds();

// One signal's handler: ours as long as a scope holds it.
struct HandlerSlot {
  int signal;
  int holders = 0;
  struct sigaction before{};

  // Whether it is ours now.
  bool hold(bool replace);
  void release();
};

// What all scopes of the process share.
struct Handlers {
  std::mutex mutex{};
  int scopes = 0;
  HandlerSlot slots[3] = {{SIGTERM}, {SIGINT}, {SIGUSR1}};
};
Handlers& handlers();

// Only what may be called while anything is interrupted. A terminal and a launcher may both pass on
// one Ctrl-C, so what follows within a second is the same request.
void on_signal(int signal);

}  // namespace detail

/// Notes SIGTERM, SIGINT and in a job of Slurm SIGUSR1, which `sbatch --signal=USR1@120` sends
/// ahead of the time limit, instead of dying from them, while it lives; a second one, more than a
/// second later, has its usual effect at once. Scopes may overlap, also in several threads: a
/// signal is for all of them. After the last one the handlers are what they were, unless the
/// program has set others meanwhile.
class SignalScope {
 public:
  /// replace: also take the place of a handler that the program has, or of its ignoring the signal.
  explicit SignalScope(bool on, bool replace);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  bool on_;
  bool holds_[3] = {false, false, false};  // SIGTERM, SIGINT and SIGUSR1
};

/// The signal that this process has received since the first of the present scopes began; 0: none.
inline int received_signal() noexcept {
  return detail::received_signal.load(std::memory_order_relaxed);
}

}  // namespace train

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
