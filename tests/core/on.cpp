#include <tutti/core/on.hpp>

#include <string>
#include <vector>

#include <tutti/core/engine.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/core/trace.hpp>

#include "support/catch.hpp"

namespace tutti {
struct State {
  int calls = 0;
};
}  // namespace tutti

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {
constexpr auto change = [](State& state) { ++state.calls; };
constexpr auto look = [](const State&) {};
}  // namespace

static_assert(Algorithm<decltype(on<BatchEnd>(change))>);
static_assert(Callback<decltype(on<BatchEnd>(look))>);
static_assert(decltype(on<BatchEnd>(change))::name == "on_batch_end");
static_assert(decltype(on<BatchEnd, EpochEnd>(change))::name == "on_batch_end_epoch_end");

TEST_CASE("a function is a policy of its event", "[on]") {
  Engine engine{on<BatchEnd>(change)};
  State state;
  engine.fire<BatchStart>(state);
  CHECK(state.calls == 0);
  engine.fire<BatchEnd>(state);
  CHECK(state.calls == 1);
}

TEST_CASE("a function is called at each of several events", "[on]") {
  Engine engine{on<BatchStart, BatchEnd>(change)};
  State state;
  engine.fire<BatchStart>(state);
  engine.fire<BatchEnd>(state);
  engine.fire<EpochEnd>(state);
  CHECK(state.calls == 2);
}

TEST_CASE("a function keeps what it has captured", "[on]") {
  Engine engine{on<BatchEnd>([count = 0](State& state) mutable { state.calls = ++count * 10; })};
  State state;
  engine.fire<BatchEnd>(state);
  engine.fire<BatchEnd>(state);
  CHECK(state.calls == 20);
}

TEST_CASE("several functions run in the order of the recipe, those that look last", "[on]") {
  std::vector<std::string> seen;
  Engine engine{on<BatchEnd>([&](const State&) { seen.emplace_back("look"); }),
                on<BatchEnd>([&](State&) { seen.emplace_back("first"); }),
                named<"second">(on<BatchEnd>([&](State&) { seen.emplace_back("second"); }))};
  State state;
  engine.fire<BatchEnd>(state);
  CHECK(seen == std::vector<std::string>{"first", "second", "look"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
