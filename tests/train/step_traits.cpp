#include <tutti/train/step_traits.hpp>

#include <tutti/core/trace.hpp>
#include <tutti/train/engine_adapter.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace tutti::train::detail;

namespace {

struct Plain final {
  void apply(AfterLoss, State&) {}
};

struct Late final {
  void apply(AfterTrainBatch, State&) {}
};

// Makes each step itself, in two passes.
struct Twice final {
  static constexpr About about{.skips_steps = true};
  void apply(Init, State&) {}
  template <class Pass, class Update>
  void step(State&, const Pass& pass, const Update& update) {
    pass(true);
    pass(false);
    update();
  }
};

}  // namespace

TEST_CASE("who takes the step is known when the program compiles", "[train][step_traits]") {
  STATIC_REQUIRE(TakesStep<Twice>);
  STATIC_REQUIRE_FALSE(TakesStep<Plain>);
  STATIC_REQUIRE(step_takers<types<Plain, Twice, Twice>> == 2);
  STATIC_REQUIRE(step_taker(types<Plain, Twice>{}) == "Twice");
  STATIC_REQUIRE(step_taker(types<Plain>{}).empty());

  STATIC_REQUIRE(one_takes_step<Engine<Plain, Twice>>);
  STATIC_REQUIRE_FALSE(may_fold<Engine<Plain, Twice>>);
  STATIC_REQUIRE(may_fold<Engine<Plain>>);
  STATIC_REQUIRE(may_skip<Engine<Twice>>);
  STATIC_REQUIRE_FALSE(may_skip<Engine<Plain>>);

  STATIC_REQUIRE(one_takes_step<train::AnyEngine>);  // what is only known when the program runs
  STATIC_REQUIRE(may_fold<train::AnyEngine>);
  STATIC_REQUIRE(may_skip<train::AnyEngine>);
}

TEST_CASE("the policy that takes steps makes one, others do not", "[train][step_traits]") {
  State state;
  Engine<Plain, Twice> engine;
  int passes = 0;
  int updates = 0;
  const auto pass = [&](bool) {
    ++passes;
    return true;
  };
  const auto update = [&] { ++updates; };
  CHECK(takes_step(engine));
  take_step(engine, state, pass, update);
  CHECK(passes == 2);
  CHECK(updates == 1);

  Engine<Plain> other;
  CHECK_FALSE(takes_step(other));
  take_step(other, state, pass, update);
  CHECK(passes == 2);
}

TEST_CASE("a pass is undivided where nobody looks inside", "[train][step_traits]") {
  CHECK(is_undivided(Engine<>{}));
  CHECK(is_undivided(Engine<Late>{}));
  CHECK_FALSE(is_undivided(Engine<Late, Plain>{}));
  CHECK_FALSE(is_undivided(Engine<Trace>{}));  // it records what is fired

  Engine<Late> late;
  Engine<Late, Plain> both;
  const train::EngineAdapter<Engine<Late>> any_late(late);
  const train::EngineAdapter<Engine<Late, Plain>> any_both(both);
  CHECK(is_undivided<train::AnyEngine>(any_late));
#if defined(TUTTI_SEPARATE_COMPILATION)  // else every loop knows its engine's type
  CHECK_FALSE(is_undivided<train::AnyEngine>(any_both));
#endif
}

}  // namespace UNITY_BUILD_UNIQUE_ID
