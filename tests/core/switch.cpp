#include <tutti/core/switch.hpp>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <tutti/core/engine.hpp>
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
struct Count final {
  static constexpr Rules rules{.tags = {id<mixes_inputs>}};
  int started = 0;
  void apply(BatchStart, State& state) {
    ++state.calls;
    ++started;
  }
  void apply(BatchEnd, State& state) const { state.calls += 10; }
  bool match(BatchEnd, const State& state) const { return state.calls > 1; }
};
struct After final {
  static constexpr Rules rules{.runs_after = {{id<Count>}}};
  void apply(BatchStart, State& state) const { state.calls *= 100; }
};
// A policy of a user's with members that a Switch has as well.
struct Lamp final {
  int policy = 3;
  bool on = false;
  void apply(BatchStart, State& state) const { state.calls += policy; }
  void validate_with(const Count&) const {
    throw std::runtime_error("Lamp cannot work beside Count");
  }
  template <class Model>
  void validate_model() const {
    throw std::runtime_error("Lamp cannot work on this model");
  }
};
struct Rival final {
  static constexpr Rules rules{.conflicts_with = {{id<mixes_inputs>}}};
  void apply(BatchEnd, State&) {}
};
}  // namespace

TEST_CASE("a switch that is on does what its policy does", "[switch]") {
  Engine<Switch<Count>> engine{Switch(Count{})};
  State state;
  engine.fire<BatchStart>(state);
  engine.fire<BatchEnd>(state);
  CHECK(state.calls == 1);  // match() said no
  engine.fire<BatchStart>(state);
  engine.fire<BatchEnd>(state);
  CHECK(state.calls == 12);
}

TEST_CASE("a switch that is off does nothing", "[switch]") {
  Engine<Switch<Count>> engine{Switch(Count{}, false)};
  State state;
  engine.fire<BatchStart>(state);
  engine.fire<BatchEnd>(state);
  CHECK(state.calls == 0);
  engine.get<Switch<Count>>().on = true;
  engine.fire<BatchStart>(state);
  CHECK(state.calls == 1);
}

TEST_CASE("a policy with members `policy` and `on` is no switch", "[switch]") {
  CHECK_THROWS_WITH((Engine<Lamp, Count>()), "Lamp cannot work beside Count");
  CHECK_THROWS_WITH((Engine<Lamp>().validate_model<int>()), "Lamp cannot work on this model");
  CHECK_NOTHROW((Engine<Switch<Lamp>, Count>(Switch(Lamp{}, false), Count{})));
  CHECK_THROWS_WITH((Engine<Switch<Switch<Lamp>>, Count>()), "Lamp cannot work beside Count");
  STATIC_REQUIRE(std::is_same_v<detail::Unswitched<Lamp>, Lamp>);
  STATIC_REQUIRE(std::is_same_v<detail::Unswitched<Switch<Switch<Lamp>>>, Lamp>);
  CHECK(detail::is_on(Lamp{}));
  CHECK_FALSE(detail::is_on(Switch<Switch<Lamp>>(Switch(Lamp{}, false))));
}

TEST_CASE("rules of and about the policy hold for its switch", "[switch]") {
  static_assert(
      std::is_same_v<Recipe<After, Switch<Count>>::order<BatchStart>, types<Switch<Count>, After>>);
  static_assert(
      std::is_same_v<Recipe<Switch<After>, Count>::order<BatchStart>, types<Count, Switch<After>>>);
  static_assert(detail::refuses<Rival, Switch<Count>>());
  static_assert(name_of<Switch<Count>>() == "Count");
  static_assert(role_of<Switch<Count>> == Role::algorithm);
  static_assert(!Handles<Switch<Count>, EpochEnd>);
  SUCCEED("checked by the compiler");
}

TEST_CASE("a policy with a name of its own stands beside one of its type", "[switch][named]") {
  using Second = Named<"second", Count>;
  static_assert(Recipe<Count, Second, Named<"third", Count>>::valid);
  static_assert(name_of<Second>() == "Count.second");
  static_assert(
      std::is_same_v<Recipe<After, Second, Count>::order<BatchStart>, types<Second, Count, After>>);
  static_assert(detail::refuses<Rival, Second>());
  Engine<Count, Second> engine{Count{}, named<"second">(Count{.started = 5})};
  State state;
  engine.fire<BatchStart>(state);
  CHECK(state.calls == 2);
  CHECK(engine.get<Count>().started == 1);
  CHECK(engine.get<Second>().policy.started == 6);
}

TEST_CASE("a switch forwards what a recorder is told", "[switch]") {
  using Lines = std::vector<std::string>;
  Engine<Count, Switch<Trace>> engine{Count{}, Switch(Trace{})};
  State state;
  engine.fire<BatchStart>(state);
  CHECK(engine.get<Switch<Trace>>().policy.lines == Lines{"batch_start", "batch_start>Count"});
  engine.get<Switch<Trace>>().on = false;
  engine.fire<BatchStart>(state);
  CHECK(engine.get<Switch<Trace>>().policy.lines.size() == 2);
}

namespace {
struct FusedStep {
  int joined = 0;
};
struct Folds final {
  static constexpr About about{
      .fuses_into_step = {id<BatchEnd>},
      .only_watches = {id<BatchEnd>},
  };
  static constexpr Rules rules{.warns_with = {{id<Count>}}};
  template <class Model>
  static constexpr bool supports = std::is_same_v<Model, int>;
  void apply(BatchEnd, State&) {}
  void join(FusedStep& fused, const State&) { ++fused.joined; }
};
template <class P>
concept CanJoin =
    requires(P& policy, FusedStep& fused, const State& state) { policy.join(fused, state); };
}  // namespace

TEST_CASE("a switch takes part in the optimizer's pass where its policy does, and not when off",
          "[switch]") {
  static_assert(detail::holds(policy_traits<Switch<Folds>>::about.fuses_into_step, id<BatchEnd>));
  static_assert(detail::holds(policy_traits<Switch<Folds>>::about.only_watches, id<BatchEnd>));
  static_assert(policy_traits<Switch<Count>>::about.fuses_into_step.size() == 0);
  static_assert(CanJoin<Switch<Folds>> && !CanJoin<Switch<Count>>);
  Switch<Folds> policy(Folds{});
  FusedStep fused;
  policy.join(fused, State());
  CHECK(fused.joined == 1);
  policy.on = false;
  policy.join(fused, State());
  CHECK(fused.joined == 1);
}

TEST_CASE("a switch needs the model that its policy needs, but does not warn of what may be off",
          "[switch]") {
  static_assert(Supports<Switch<Folds>, int>);
  static_assert(!Supports<Switch<Folds>, double>);
  static_assert(Supports<Switch<Count>, double>);
  static_assert(detail::warns<Folds, Switch<Count>>());
  static_assert(!detail::warns<Switch<Folds>, Count>());  // of the two only one may be on
  SUCCEED("checked by the compiler");
}

namespace {
struct First final {
  static constexpr Rules rules{.runs_first = {id<BatchStart>}};
  void apply(BatchStart, State& state) const { state.calls = 1; }
};
struct Last final {
  static constexpr Rules rules{.runs_last = {id<BatchStart>}};
  void apply(BatchStart, State& state) const { state.calls *= 7; }
};
}  // namespace

TEST_CASE("a switch keeps its policy's place at an event", "[switch]") {
  static_assert(std::is_same_v<Recipe<Switch<Last>, Count, Switch<First>>::order<BatchStart>,
                               types<Switch<First>, Count, Switch<Last>>>);
  SUCCEED("checked by the compiler");
}

namespace {
struct Closes final {
  int closed = 0;
  void apply(BatchStart, State&) {}
  void close(State&) { ++closed; }
};
struct Listens final {
  int closed = 0;
  void log_metrics(std::span<const LoggedMetric>, std::int64_t) {}
  void close(State&) { ++closed; }
};
}  // namespace

TEST_CASE("a switch is closed when it was on at any time, and only then", "[switch]") {
  Engine<Switch<Closes>, Named<"off", Closes>, Switch<Listens>> engine{
      Switch(Closes{}), Named<"off", Closes>(Closes{}, false), Switch(Listens{})};
  auto& was_on = engine.get<Switch<Closes>>();
  auto& listened = engine.get<Switch<Listens>>();
  State state;
  engine.fire<BatchStart>(state);
  listened.log_metrics({}, 0);
  was_on.on = listened.on = false;
  engine.close(state);
  CHECK(was_on.policy.closed == 1);
  CHECK(engine.get<Named<"off", Closes>>().policy.closed == 0);
  CHECK(listened.policy.closed == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
