// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/detail/kept_memory.hpp>

namespace tutti::data::detail {

// Results of tasks that threads of its own work on ahead of time, taken in the order in which they
// were asked for. A copy has no tasks and begins threads of its own when it is given some.
template <class T>
class Ahead {
 public:
  using Task = std::packaged_task<T()>;

  Ahead() = default;
  Ahead(const Ahead&) {}
  Ahead(Ahead&& other) noexcept
      : shared_(std::exchange(other.shared_, nullptr)),
        threads_(std::exchange(other.threads_, {})),
        results_(std::exchange(other.results_, {})) {}
  Ahead& operator=(Ahead other) noexcept {
    std::swap(shared_, other.shared_);
    std::swap(threads_, other.threads_);
    std::swap(results_, other.results_);
    return *this;
  }
  ~Ahead() {
    if (shared_) {
      {
        const std::lock_guard lock(shared_->mutex);
        shared_->ends = true;
      }
      shared_->changed.notify_all();
      for (std::thread& thread : threads_) {
        thread.join();
      }
    }
  }

  // Tasks given and not yet taken.
  [[nodiscard]] std::int64_t size() const { return std::ssize(results_); }

  // Gives a task to `threads` threads, >= 1; they begin with the first task. Its tensors get the
  // kind of memory that those of the caller get.
  void submit(std::int64_t threads, std::function<T()> work) {
    Task task([work = std::move(work), kept = ::tutti::detail::keeping_memory > 0] {
      const ::tutti::detail::KeptMemory memory(kept);
      return work();
    });
    results_.push_back(task.get_future());
    if (!shared_) {
      shared_ = std::make_shared<Shared>();
    }
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->tasks.push_back(std::move(task));
    }
    shared_->changed.notify_one();
    while (std::ssize(threads_) < threads) {
      threads_.emplace_back([shared = shared_] { shared->run(); });
    }
  }

  // The oldest task's result, waiting for it. Throws what the task threw. size() > 0.
  T take() {
    std::future<T> result = std::move(results_.front());
    results_.pop_front();
    return result.get();
  }

  // Forgets all tasks; those being worked on end unseen.
  void clear() {
    results_.clear();
    if (shared_) {
      const std::lock_guard lock(shared_->mutex);
      shared_->tasks.clear();
    }
  }

 private:
  struct Shared {
    std::mutex mutex{};
    std::condition_variable changed{};
    std::deque<Task> tasks{};
    bool ends = false;

    void run() {
      for (;;) {
        Task task;
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [this] { return ends || !tasks.empty(); });
          if (ends) {
            return;
          }
          task = std::move(tasks.front());
          tasks.pop_front();
        }
        task();
      }
    }
  };

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  std::deque<std::future<T>> results_;
};

}  // namespace tutti::data::detail
