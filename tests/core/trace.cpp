#include <tutti/core/trace.hpp>

#include <tutti/core/engine.hpp>

#include "support/catch.hpp"

namespace tutti {
struct State {};
}  // namespace tutti

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Lines = std::vector<std::string>;

namespace {
struct Algo final {
  void apply(BatchStart, State&) {}
};
struct Watch final {
  void apply(BatchStart, const State&) {}
};
}  // namespace

TEST_CASE("a trace has a line per event and per algorithm that acts", "[trace]") {
  Engine<Watch, Algo, Trace> engine;
  State state;
  engine.fire<BatchStart>(state);
  engine.fire<BatchEnd>(state);
  engine.record("batch_checkpoint", "save:ep0-ba1");
  CHECK(engine.get<Trace>().lines ==
        Lines{"batch_start", "batch_start>Algo", "batch_end", "batch_checkpoint>save:ep0-ba1"});
}

TEST_CASE("a trace shows callbacks when asked to", "[trace]") {
  Engine<Watch, Algo, Trace> engine;
  engine.get<Trace>().algorithms_only = false;
  State state;
  engine.fire<BatchStart>(state);
  CHECK(engine.get<Trace>().lines == Lines{"batch_start", "batch_start>Algo", "batch_start>Watch"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
