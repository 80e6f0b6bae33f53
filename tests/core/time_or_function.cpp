#include <tutti/core/time_or_function.hpp>

#include <string_view>
#include <utility>

#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::State;
using tutti::Time;
using tutti::TimeOrFunction;

static_assert(!TimeOrFunction());
static_assert(TimeOrFunction("3ba") == Time::batches(3) && TimeOrFunction("3ba"));
static_assert(TimeOrFunction(2) == Time("2ep") && TimeOrFunction(Time("2ep")) == Time("2ep"));
static_assert(TimeOrFunction("1ba").function() == nullptr && !TimeOrFunction("0ep"));
static_assert(!std::is_constructible_v<TimeOrFunction, bool (*)(const State&)>);

TEST_CASE("an interval is a time or a function of the state and the event", "[core]") {
  TimeOrFunction when = "10ba";
  CHECK(to_string(when) == "10ba");
  when = [](const State& state, std::string_view event) {
    return event == tutti::BatchEnd::name && state.timestamp.batch == 3;
  };
  CHECK(static_cast<bool>(when));
  CHECK(to_string(when) == "a function");
  CHECK_FALSE(when == Time());
  CHECK_THROWS_AS(TimeOrFunction("1ba") == Time("1ep"), tutti::TimeUnitError);
  const TimeOrFunction copy = when;
  const TimeOrFunction moved = std::move(when);
  REQUIRE(copy.function() != nullptr);
  REQUIRE(moved.function() != nullptr);
  CHECK(copy.function() != moved.function());
  State state;
  state.timestamp.batch = 3;
  CHECK((*copy.function())(state, "batch_end"));
  CHECK((*moved.function())(state, "batch_end"));
  CHECK_FALSE((*copy.function())(state, "epoch_end"));
  when = "1ep";
  CHECK(when == Time::epochs(1));
}

TEST_CASE("an empty function is no interval", "[core]") {
  CHECK_THROWS_WITH(TimeOrFunction(TimeOrFunction::Function()),
                    Catch::Matchers::ContainsSubstring("an interval is an empty function"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
