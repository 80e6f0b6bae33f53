// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace tutti::detail {

// Thrown by a transport: nothing is wrong with what was sent, the same may work later.
struct TryLater : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SenderOptions {
  using Duration = std::chrono::milliseconds;

  std::string who;                 // named in warnings, "MLflowLogger"
  std::size_t capacity = 100'000;  // items that wait at most; what comes then is lost and counted
  std::size_t batch = 1000;        // items handed to the transport at most
  Duration interval = std::chrono::seconds(10);   // that items wait for others to join them
  Duration first_wait = std::chrono::seconds(1);  // after a failure; doubled by each that follows
  Duration longest_wait = std::chrono::seconds(60);
  int failures_before_warning = 2;
  std::function<void(const std::string&)> warn = [](const std::string& text) { TORCH_WARN(text); };
};

// Hands items to a transport on a thread of its own, so that whoever adds them never waits for a
// network.
//
// The transport gets items in the order in which they were added and removes from the front those
// that have arrived, or leaves all and returns. It throws TryLater to be called again with the
// rest, first soon and then less and less often, and anything else to have them dropped. It must
// return by `until`.
template <class T>
class Sender {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = SenderOptions::Duration;
  using Transport = std::function<void(std::deque<T>& items, Clock::time_point until)>;

  Sender(SenderOptions options, Transport transport)
      : options_(std::move(options)), transport_(std::move(transport)) {
    thread_ = std::thread([this] { run(); });
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() { close(Duration::zero()); }

  // Leaves an item to be sent. always: also when there is no room. False: it is lost.
  bool add(T item, bool always = false) {
    bool enough = false;
    {
      const std::lock_guard lock(mutex_);
      if (closing_ || (waiting_.size() + in_flight_ >= options_.capacity && !always)) {
        ++lost_;
        return false;
      }
      waiting_.push_back(std::move(item));
      enough = waiting_.size() == options_.batch;
    }
    if (enough) {
      wake_.notify_one();
    }
    return true;
  }

  // Lets what waits go now.
  void hurry() {
    {
      const std::lock_guard lock(mutex_);
      hurry_ = true;
    }
    wake_.notify_one();
  }

  // Sends what is left, for no longer than `most`, and ends the thread.
  // Returns how many items have not arrived, those lost before included.
  std::size_t close(Duration most) {
    {
      const std::lock_guard lock(mutex_);
      if (!closing_) {
        closing_ = true;
        until_ = Clock::now() + most;
      }
    }
    wake_.notify_one();
    if (thread_.joinable()) {
      thread_.join();
    }
    return lost_ + waiting_.size() + in_flight_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    std::deque<T> items;
    int failures = 0;
    auto next = Clock::now() + options_.interval;
    while (true) {
      wake_.wait_until(lock, next, [&] {
        return closing_ || (failures == 0 && (hurry_ || waiting_.size() >= options_.batch));
      });
      take(items);
      if (items.empty() || (closing_ && Clock::now() >= until_)) {
        if (closing_) {
          return;
        }
        hurry_ = false;
        next = Clock::now() + options_.interval;
        continue;
      }
      const auto until = closing_ ? until_ : Clock::now() + std::chrono::seconds(30);
      lock.unlock();
      const bool failed = !send(items, until, failures);
      lock.lock();
      in_flight_ = items.size();
      failures = failed ? failures + 1 : 0;
      const bool more = hurry_ || waiting_.size() >= options_.batch;
      next = Clock::now() + (failed ? pause(failures)
                             : more ? Duration::zero()
                                    : options_.interval);
      if (closing_ && failed) {  // tried again, until the time is up
        const auto soon = Clock::now() + std::min(pause(failures), most_while_closing);
        wake_.wait_until(lock, std::min(soon, until_), [] { return false; });
      }
    }
  }

  void take(std::deque<T>& items) {
    if (items.empty()) {
      const std::size_t size = std::min(options_.batch, waiting_.size());
      for (std::size_t i = 0; i < size; ++i) {
        items.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
      }
      in_flight_ = items.size();
    }
  }

  // Returns false when the items are to be sent again.
  bool send(std::deque<T>& items, Clock::time_point until, int failures) {
    try {
      transport_(items, until);
      items.clear();
      if (failures >= options_.failures_before_warning) {
        options_.warn(options_.who + ": the server answers again");
      }
    } catch (const TryLater& reason) {
      if (failures + 1 == options_.failures_before_warning) {
        options_.warn(options_.who + ": " + reason.what() + "; training goes on, up to " +
                      std::to_string(options_.capacity) + " values wait and are tried again");
      }
      return false;
    } catch (const std::exception& reason) {
      {
        const std::lock_guard lock(mutex_);
        lost_ += items.size();
      }
      items.clear();
      if (!std::exchange(refused_, true)) {
        options_.warn(options_.who + ": " + reason.what() + "; these values are lost");
      }
    }
    return true;
  }

  Duration pause(int failures) const {
    Duration wait = options_.first_wait;
    for (int i = 1; i < failures && wait < options_.longest_wait; ++i) {
      wait *= 2;
    }
    return std::min(wait, options_.longest_wait);
  }

  static constexpr Duration most_while_closing{500};

  const SenderOptions options_;
  const Transport transport_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<T> waiting_;      // guarded by the mutex, as all that follows
  std::size_t in_flight_ = 0;  // items that the thread has taken
  std::size_t lost_ = 0;
  bool hurry_ = false;
  bool closing_ = false;
  Clock::time_point until_{};
  bool refused_ = false;  // the thread's own
  std::thread thread_;    // last, so that it begins when all else is there
};

}  // namespace tutti::detail
