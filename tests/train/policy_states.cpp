#include <tutti/train/policy_states.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/engine.hpp>
#include <tutti/core/switch.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

struct Counts final {
  using events = types<BatchEnd>;
  std::int64_t count = 0;
  std::int64_t prepared = 0;

  void apply(BatchEnd, State&) { ++count; }
  void save(Archive& archive) const { archive.put("count", count); }
  void load(const Archive& archive) { count = archive.get<std::int64_t>("count"); }
  void prepare_load(const Archive& archive, State&) {
    prepared = archive.get<std::int64_t>("count");
  }
};

struct Draws final {
  using events = types<BatchStart>;
  Rng rng{};
  void apply(BatchStart, State&) {}
};

// Notes when a checkpoint is written.
template <int Number>
struct Enters final {
  std::vector<std::string>* lines = nullptr;
  using events = types<BatchStart>;
  void apply(BatchStart, State&) {}
  void enter_checkpoint(State&) const { note("in "); }
  void leave_checkpoint(State&) const { note("out "); }
  void note(const char* what) const { lines->push_back(what + std::to_string(Number)); }
};

}  // namespace

TEST_CASE("what is given to the model for a checkpoint is taken back, the last first", "[train]") {
  std::vector<std::string> lines;
  const Enters<2> second{&lines};
  Engine<Enters<1>, Counts, Switch<Enters<2>>, Switch<Enters<3>>> engine(
      Enters<1>{&lines}, Counts{}, Switch(second), Switch(Enters<3>{&lines}, false));
  const train::PolicyStates states = train::policy_states(engine);
  CHECK(states[1].enter_checkpoint == nullptr);
  State state;
  {
    const train::CheckpointScope scope(states, state);
    CHECK(std::exchange(lines, {}) == std::vector<std::string>{"in 1", "in 2"});
  }
  CHECK(lines == std::vector<std::string>{"out 2", "out 1"});
}

TEST_CASE("a checkpoint sees of a policy its name, its stream and what it keeps", "[train]") {
  Engine<Counts, Draws> engine(Counts{.count = 3}, Draws{});
  const train::PolicyStates states = train::policy_states(engine);
  REQUIRE(states.size() == 2);
  CHECK(states[0].name == "Counts");
  CHECK(states[0].rng == nullptr);
  CHECK(states[1].name == "Draws");
  CHECK(states[1].rng == &engine.get<Draws>().rng);
  CHECK(states[1].save == nullptr);
  CHECK(states[1].load == nullptr);
  CHECK(states[1].prepare_load == nullptr);
  CHECK(states[0].saver == nullptr);

  Archive archive;
  states[0].save(states[0].policy, archive);
  engine.get<Counts>().count = 0;
  State state;
  states[0].prepare_load(states[0].policy, archive, state);
  states[0].load(states[0].policy, archive);
  CHECK(engine.get<Counts>().count == 3);
  CHECK(engine.get<Counts>().prepared == 3);
}

TEST_CASE("a checkpoint sees through a Switch, on or off", "[train]") {
  Switch<Counts> off(Counts{.count = 5}, false);
  const train::PolicyState seen = train::policy_state(off);
  CHECK(seen.name == "Counts");
  Archive archive;
  seen.save(seen.policy, archive);
  State state;
  seen.prepare_load(seen.policy, archive, state);
  CHECK(off.policy.prepared == 5);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
