#include <tutti/train/policy_states.hpp>

#include "support/catch.hpp"

#include <cstdint>

#include <tutti/core/engine.hpp>
#include <tutti/core/switch.hpp>

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

}  // namespace

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
