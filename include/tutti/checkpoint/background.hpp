// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

namespace tutti::checkpoint {

/// Runs one piece of work at a time in a thread of its own.
class Background {
 public:
  Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// Waits for what is running. A failure that nobody has asked for is lost.
  ~Background() { wait(); }

  /// Begins `work`; waits first for what is running, and drops its failure.
  void run(std::function<void()> work) {
    wait();
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    thread_ = std::thread([this, work = std::move(work)] {
      try {
        work();
      } catch (...) {
        error_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    });
  }

  /// Whether the work has ended with an exception; costs a look at memory.
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// Returns when nothing is running.
  void wait() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  /// Waits, and hands out what the work threw; null when it ended well. Null when called again.
  std::exception_ptr finish() {
    wait();
    failed_.store(false, std::memory_order_relaxed);
    return std::exchange(error_, nullptr);
  }

 private:
  std::thread thread_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

}  // namespace tutti::checkpoint
