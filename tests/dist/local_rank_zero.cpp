#include <tutti/dist/local_rank_zero.hpp>

#include <tutti/dist/process_group.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

template <class Run>
void check_order(dist::Communicator& group, Run run) {
  steady_clock::time_point started;
  run([&] {
    started = steady_clock::now();
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(300));
    }
  });
  const auto times = group.all_gather_bytes(
      std::to_string(started.time_since_epoch().count()));  // one clock: one machine
  CHECK(std::stoll(times[1]) - std::stoll(times[0]) >= 300'000'000);
}

template <class Run>
std::string error_of(Run run) {
  try {
    run([] { throw std::runtime_error("disk full"); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

template <class Run>
void check_failure(dist::Communicator& group, Run run) {
  CHECK_THAT(error_of(run), ContainsSubstring(group.rank() == 0 ? "disk full" : "did not start"));
}

}  // namespace

TEST_CASE("rank body: local rank 0 first", "[.rank]") {
  const auto group = dist::initialize();
  const auto run = [&](const auto& body) { dist::run_local_rank_zero_first(*group, body); };
  check_order(*group, run);
  check_failure(*group, run);
}

TEST_CASE("rank body: local rank 0 longer than the timeout", "[.rank]") {
  const auto group = dist::initialize(c10::DeviceType::CPU, milliseconds(1500));
  char folder[] = "/tmp/tutti_signal_XXXXXX";
  const std::string shared = group->broadcast_bytes(group->rank() == 0 ? mkdtemp(folder) : "");
  const auto run = [&](const auto& body) {
    dist::run_local_rank_zero_first_patiently(*group, body, shared);
  };
  check_order(*group, run);
  check_failure(*group, run);
  run([&] {
    if (group->rank() == 0) {
      std::this_thread::sleep_for(milliseconds(2500));
    }
  });
  group->barrier();
  if (group->rank() == 0) {
    CHECK(rmdir(shared.c_str()) == 0);  // empty: the signal files are gone
  }
  CHECK_THAT(error_of([&](const auto& body) {
               dist::run_local_rank_zero_first_patiently(*group, body, "/no/such/folder");
             }),
             ContainsSubstring("a file in /no/such/folder could not be written"));
}

TEST_CASE("local rank 0 runs first, and its failure reaches the others", "[dist]") {
  CHECK(tutti_test::run_ranks("rank body: local rank 0 first") == tutti_test::all_passed);
}

TEST_CASE("local rank 0 may work longer than the timeout", "[dist]") {
  CHECK(tutti_test::run_ranks("rank body: local rank 0 longer than the timeout") ==
        tutti_test::all_passed);
}

TEST_CASE("one process runs the body and its errors pass through", "[dist]") {
  dist::SingleProcess group;
  int ran = 0;
  dist::run_local_rank_zero_first(group, [&] { ++ran; });
  dist::run_local_rank_zero_first_patiently(group, [&] { ++ran; }, "/tmp");
  CHECK(ran == 2);
  const auto run = [&](const auto& body) { dist::run_local_rank_zero_first(group, body); };
  CHECK(error_of(run) == "disk full");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
