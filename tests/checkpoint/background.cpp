#include <tutti/checkpoint/background.hpp>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::checkpoint::Background;

TEST_CASE("work runs in another thread, one piece at a time", "[checkpoint][background]") {
  std::atomic<int> running{0};
  std::atomic<int> done{0};
  std::atomic<int> most{0};
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> elsewhere{true};
  {
    Background background;
    for (int i = 0; i < 5; ++i) {
      background.run([&] {
        most = std::max(most.load(), ++running);
        elsewhere = elsewhere && std::this_thread::get_id() != caller;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        --running;
        ++done;
      });
    }
  }  // waits
  CHECK(done == 5);
  CHECK(most == 1);
  CHECK(elsewhere);
}

TEST_CASE("a failure is noticed and handed out once", "[checkpoint][background]") {
  Background background;
  CHECK_FALSE(background.failed());
  CHECK(background.finish() == nullptr);
  background.run([] { throw std::runtime_error("disk full"); });
  const auto error = background.finish();
  REQUIRE(error);
  CHECK_THROWS_WITH(std::rethrow_exception(error), "disk full");
  CHECK_FALSE(background.failed());
  CHECK(background.finish() == nullptr);
  background.run([] { throw std::runtime_error("again"); });
  background.wait();
  CHECK(background.failed());
  background.run([] {});
  background.wait();
  CHECK_FALSE(background.failed());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
