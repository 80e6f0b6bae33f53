#include <tutti/train/any_engine.hpp>

#include <initializer_list>
#include <string>
#include <vector>

#include <tutti/core/trace.hpp>
#include <tutti/train/engine_adapter.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

struct OnInit final {
  int calls = 0;
  void apply(Init, const State&) { ++calls; }
};

}  // namespace

TEST_CASE("every event has its place in the order of all events", "[train][engine]") {
  STATIC_REQUIRE(train::detail::event_index<Init> == 0);
  STATIC_REQUIRE(train::detail::event_index<BeforeLoad> == 1);
  STATIC_REQUIRE(train::detail::event_index<PredictEnd> + 1 == all_events::size);
}

TEST_CASE("a plan that folds nothing is false", "[train][engine]") {
  CHECK_FALSE(train::FoldPlan{.keep_gradients = true});
  CHECK(train::FoldPlan{.gradients = true});
  CHECK(train::FoldPlan{.averages = true});
}

TEST_CASE("an event reaches the policies that act on it, whatever the recipe", "[train][engine]") {
  Engine<OnInit> counts;
  Engine<Trace> records;
  train::EngineAdapter<Engine<OnInit>> first(counts);
  train::EngineAdapter<Engine<Trace>> second(records);
  State state;
  for (train::AnyEngine* engine : std::initializer_list<train::AnyEngine*>{&first, &second}) {
    engine->fire<Init>(state);
    engine->fire<BeforeLoad>(state);
  }
  CHECK(counts.get<OnInit>().calls == 1);
  CHECK(records.get<Trace>().lines == std::vector<std::string>{"init", "before_load"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
