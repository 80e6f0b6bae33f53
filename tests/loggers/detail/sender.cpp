#include <tutti/loggers/detail/sender.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::detail::Sender;
using tutti::detail::SenderOptions;
using tutti::detail::TryLater;
using namespace std::chrono_literals;

namespace {

// A backend that takes what it is told to.
struct Backend {
  std::atomic<int> failures = 0;  // calls that fail before one works
  std::atomic<int> calls = 0;
  std::atomic<bool> refuses = false;
  std::chrono::milliseconds takes = 0ms;
  std::vector<int> arrived;  // read when the sender is closed
  std::vector<std::size_t> batches;
  std::vector<std::chrono::steady_clock::time_point> times;
  std::vector<std::string> warnings;

  void operator()(std::deque<int>& items, std::chrono::steady_clock::time_point until) {
    ++calls;
    times.push_back(std::chrono::steady_clock::now());
    std::this_thread::sleep_until(std::min(times.back() + takes, until));
    if (refuses) {
      throw std::runtime_error("401: no");
    }
    if (failures > 0) {
      --failures;
      throw TryLater("nobody answers");
    }
    batches.push_back(items.size());
    arrived.insert(arrived.end(), items.begin(), items.end());
  }
};

SenderOptions options(Backend& backend) {
  return {.who = "Test",
          .interval = 10ms,
          .first_wait = 2ms,
          .longest_wait = 20ms,
          .warn = [&](const std::string& text) { backend.warnings.push_back(text); }};
}

std::vector<int> first(int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(i);
  }
  return out;
}

}  // namespace

TEST_CASE("everything arrives once, in order, in batches", "[loggers][law]") {
  Backend backend;
  SenderOptions settings = options(backend);
  settings.batch = 7;
  Sender<int> sender(settings, std::ref(backend));
  for (int i = 0; i < 100; ++i) {
    CHECK(sender.add(i));
  }
  CHECK(sender.close(5s) == 0);
  CHECK(backend.arrived == first(100));
  CHECK(*std::max_element(backend.batches.begin(), backend.batches.end()) == 7);
  CHECK(backend.warnings.empty());
}

TEST_CASE("a failure is tried again, less and less often, with one warning", "[loggers][law]") {
  Backend backend;
  backend.failures = 6;
  Sender<int> sender(options(backend), std::ref(backend));
  for (int i = 0; i < 10; ++i) {
    sender.add(i);
  }
  sender.hurry();
  while (backend.calls < 7) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(sender.close(5s) == 0);
  CHECK(backend.arrived == first(10));
  REQUIRE(backend.warnings.size() == 2);
  CHECK(backend.warnings[0] ==
        "Test: nobody answers; training goes on, up to 100000 values wait and are tried again");
  CHECK(backend.warnings[1] == "Test: the server answers again");
  for (int i = 1; i <= 5; ++i) {  // 2, 4, 8, 16, 20 ms at least
    CHECK(backend.times[static_cast<std::size_t>(i)] -
              backend.times[static_cast<std::size_t>(i - 1)] >=
          std::min(20ms, 2ms * (1 << (i - 1))));
  }
}

TEST_CASE("a dead backend costs a bounded queue and a deadline", "[loggers][law]") {
  Backend backend;
  backend.failures = 1'000'000;
  SenderOptions settings = options(backend);
  settings.capacity = 50;
  Sender<int> sender(settings, std::ref(backend));
  int taken = 0;
  for (int i = 0; i < 1000; ++i) {
    taken += sender.add(i) ? 1 : 0;
  }
  CHECK(taken == 50);
  CHECK(sender.add(1, /*always=*/true));
  const auto start = std::chrono::steady_clock::now();
  CHECK(sender.close(100ms) == 1001);
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  CHECK(backend.warnings.size() == 1);
  CHECK(backend.arrived.empty());
}

TEST_CASE("a slow backend does not make whoever adds wait", "[loggers][law]") {
  Backend backend;
  backend.takes = 300ms;
  SenderOptions settings = options(backend);
  settings.batch = 1;
  Sender<int> sender(settings, std::ref(backend));
  std::chrono::steady_clock::duration longest{};
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    sender.add(i);
    longest = std::max(longest, std::chrono::steady_clock::now() - start);
    std::this_thread::sleep_for(1ms);
  }
  CHECK(longest < 250ms);
  const auto start = std::chrono::steady_clock::now();
  const std::size_t left = sender.close(400ms);
  CHECK(std::chrono::steady_clock::now() - start < 2s);
  CHECK(left > 100);
  CHECK(left + backend.arrived.size() == 200);
}

TEST_CASE("what is refused is dropped with one warning and counted", "[loggers][law]") {
  Backend backend;
  backend.refuses = true;
  Sender<int> sender(options(backend), std::ref(backend));
  sender.add(1);
  sender.hurry();
  while (backend.calls < 1) {
    std::this_thread::sleep_for(1ms);
  }
  sender.add(2);
  sender.hurry();
  while (backend.calls < 2) {
    std::this_thread::sleep_for(1ms);
  }
  backend.refuses = false;
  sender.add(3);
  CHECK(sender.close(5s) == 2);
  CHECK(backend.arrived == std::vector<int>{3});
  CHECK(backend.warnings == std::vector<std::string>{"Test: 401: no; these values are lost"});
  CHECK_FALSE(sender.add(4));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
