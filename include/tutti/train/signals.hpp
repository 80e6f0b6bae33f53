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
#include <tutti/train/signals.inl.hpp>
#endif
