#include <tutti/profiler/schedule.hpp>

#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::CyclicSchedule;
using tutti::ProfilerAction;

namespace {

// A letter per batch: - skip, w warmup, a active, S active_and_save.
std::string plan(const CyclicSchedule& schedule, int batches, std::int64_t length = -1,
                 std::int64_t resumed_at = 0) {
  std::string out;
  for (int b = 0; b < batches; ++b) {
    out += "-waS"[static_cast<int>(schedule.at(b, length, resumed_at))];
  }
  return out;
}

}  // namespace

TEST_CASE("the schedule of every epoch, written by hand", "[profiler][golden]") {
  CHECK(plan({}, 8) == "waaaS---");
  CHECK(plan({.skip_first = 2, .wait = 1, .warmup = 1, .active = 2, .repeat = 2}, 12) ==
        "---waS-waS--");
  CHECK(plan({.wait = 1, .warmup = 1, .active = 1, .repeat = 0}, 9) == "-wS-wS-wS");
  CHECK(plan({.warmup = 0, .active = 1, .repeat = 3}, 5) == "SSS--");
}

TEST_CASE("the last batch of an epoch saves, but only where it is active", "[profiler][law]") {
  CHECK(plan({}, 4, 4) == "waaS");
  CHECK(plan({.warmup = 3}, 3, 3) == "www");
  CHECK(plan({.repeat = 0}, 7, 7) == "waaaSwS");
}

TEST_CASE("in an epoch that was resumed the first batches are those after it",
          "[profiler][resume]") {
  CHECK(plan({.skip_first = 1, .active = 2}, 9, -1, 3) == "----waS--");
}

TEST_CASE("numbers out of range are refused, also by the compiler", "[profiler]") {
  static_assert((CyclicSchedule{}.validate(), true));
  CHECK_THROWS_WITH(CyclicSchedule{.active = 0}.validate(),
                    ContainsSubstring("CyclicSchedule: active is 0, expected 1 or more"));
  static_assert((CyclicSchedule{.warmup = 0, .active = 1, .repeat = 0}.validate(), true));
  CHECK_THROWS_WITH(CyclicSchedule{.wait = -1}.validate(), ContainsSubstring("wait is -1"));
  CHECK_THROWS_WITH(CyclicSchedule{.warmup = -1}.validate(), ContainsSubstring("warmup is -1"));
  CHECK_THROWS_WITH(CyclicSchedule{.skip_first = -1}.validate(), ContainsSubstring("skip_first"));
  CHECK_THROWS_WITH(CyclicSchedule{.repeat = -1}.validate(), ContainsSubstring("repeat"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
