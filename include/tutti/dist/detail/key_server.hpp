// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/dist/detail/door.hpp>

// The keys and values in which ranks find each other, behind a door. LibTorch-free.

namespace tutti::dist::detail {

/// What a client asks for: the first number of its message.
enum class KeyCall : std::int64_t {
  set,          ///< key, value -> nothing
  get,          ///< key, milliseconds -> 1, value, or 0 when it is not there in time
  add,          ///< key, number -> the sum
  compare_set,  ///< key, expected, desired -> the value that is there now
  check,        ///< n, keys -> whether all are there
  wait,         ///< n, keys, milliseconds -> whether all are there in time
  erase,        ///< key -> whether it was there
  count,        ///< -> number of keys
  append,       ///< key, value -> nothing
  list,         ///< -> n, keys
};

/// Serves them. A value is any bytes; add() keeps its number as text, as TCPStore does.
class KeyServer final : public DoorServer {
 public:
  using DoorServer::DoorServer;

  /// As DoorServer::step(), and answers those whose time to wait is over.
  void work(std::chrono::milliseconds most, int also = -1);

 private:
  struct Waiting {
    int client;
    bool wants_value;
    std::vector<std::string> keys;
    Clock::time_point until;
  };

  void joined(int, const std::string&) override {}
  void received(int client, const std::string& message) override;
  void left(int client) override {
    std::erase_if(waiting_, [client](const Waiting& one) { return one.client == client; });
  }

  [[nodiscard]] bool has_all(const std::vector<std::string>& keys) const;
  void wait(int client, bool wants_value, std::vector<std::string> keys, std::int64_t most_ms);
  void answer(const Waiting& one, bool in_time);
  void answer_ready();
  std::int64_t sum(const std::string& key, std::int64_t value);

  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

/// A KeyServer and its thread.
class ServedKeys {
 public:
  /// listening: a socket that listens, which the server closes.
  ServedKeys(int listening, const std::string& token);
  ServedKeys(const ServedKeys&) = delete;
  ServedKeys& operator=(const ServedKeys&) = delete;
  ~ServedKeys();

 private:
  KeyServer server_;
  Descriptor wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  pid_t process_ = ::getpid();
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE void KeyServer::work(std::chrono::milliseconds most, int also) {
  const auto now = Clock::now();
  for (const Waiting& one : waiting_) {
    most = std::min(most, std::chrono::duration_cast<std::chrono::milliseconds>(one.until - now) +
                              std::chrono::milliseconds(1));
  }
  step(std::max(most, std::chrono::milliseconds(0)), also);
  answer_ready();
}

TUTTI_INLINE void KeyServer::received(int client, const std::string& message) {
  Unpacked in(message);
  const auto call = static_cast<KeyCall>(in.number());
  const auto keys = [&in] {
    std::vector<std::string> all;
    for (std::int64_t left = in.number(); left > 0; --left) {
      all.push_back(in.text());
    }
    return all;
  };
  Packed out;
  switch (call) {
    case KeyCall::get: {
      std::vector<std::string> key{in.text()};
      wait(client, true, std::move(key), in.number());
      return;
    }
    case KeyCall::wait: {
      std::vector<std::string> all = keys();
      wait(client, false, std::move(all), in.number());
      return;
    }
    case KeyCall::set: {
      const std::string key = in.text();
      values_[key] = in.text();
      break;
    }
    case KeyCall::append: {
      const std::string key = in.text();
      values_[key] += in.text();
      break;
    }
    case KeyCall::add: {
      const std::string key = in.text();
      out.number(sum(key, in.number()));
      break;
    }
    case KeyCall::compare_set: {
      const std::string key = in.text();
      const std::string expected = in.text();
      const std::string desired = in.text();
      const auto found = values_.find(key);
      if (found == values_.end() ? expected.empty() : found->second == expected) {
        values_[key] = desired;
        out.text(desired);
      } else {
        out.text(found == values_.end() ? expected : found->second);
      }
      break;
    }
    case KeyCall::check:
      out.number(has_all(keys()) ? 1 : 0);
      break;
    case KeyCall::erase:
      out.number(static_cast<std::int64_t>(values_.erase(in.text())));
      break;
    case KeyCall::count:
      out.number(static_cast<std::int64_t>(values_.size()));
      break;
    case KeyCall::list:
      out.number(static_cast<std::int64_t>(values_.size()));
      for (const auto& [key, value] : values_) {
        out.text(key);
      }
      break;
    default:
      throw std::runtime_error("asks for what there is not");
  }
  send(client, out.bytes());
}

TUTTI_INLINE bool KeyServer::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return values_.contains(key); });
}

TUTTI_INLINE void KeyServer::wait(int client, bool wants_value, std::vector<std::string> keys,
                                  std::int64_t most_ms) {
  constexpr std::int64_t year = 31'536'000'000;
  waiting_.push_back(
      {client, wants_value, std::move(keys),
       Clock::now() + std::chrono::milliseconds(std::clamp<std::int64_t>(most_ms, 0, year))});
}

TUTTI_INLINE void KeyServer::answer(const Waiting& one, bool in_time) {
  Packed out;
  out.number(in_time ? 1 : 0);
  if (in_time && one.wants_value) {
    out.text(values_.at(one.keys.front()));
  }
  send(one.client, out.bytes());
}

TUTTI_INLINE void KeyServer::answer_ready() {
  const auto now = Clock::now();
  std::vector<Waiting> left;
  for (Waiting& one : std::exchange(waiting_, {})) {
    const bool is_there = has_all(one.keys);
    if (is_there || now >= one.until) {
      answer(one, is_there);
    } else {
      left.push_back(std::move(one));
    }
  }
  waiting_ = std::move(left);
}

TUTTI_INLINE std::int64_t KeyServer::sum(const std::string& key, std::int64_t value) {
  std::string& text = values_[key];
  errno = 0;
  char* end = nullptr;
  const long long before = std::strtoll(text.c_str(), &end, 10);
  std::int64_t total = 0;
  if (*end != 0 || errno != 0 || __builtin_add_overflow(before, value, &total)) {
    throw std::runtime_error("adds to a value that is no number");
  }
  text = std::to_string(total);
  return total;
}

TUTTI_INLINE ServedKeys::ServedKeys(int listening, const std::string& token)
    : server_(listening, token) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  thread_ = std::thread([this] {
    while (!ended_.load()) {
      server_.work(std::chrono::seconds(1), wake_.number());
    }
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TUTTI_INLINE ServedKeys::~ServedKeys() {
  if (::getpid() != process_) {  // a copy of the process, which has no such thread
    thread_.detach();
    return;
  }
  ended_.store(true);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto told = ::write(wake_.number(), &one, sizeof one);
  thread_.join();
}

}  // namespace tutti::dist::detail

#endif
