// Compiled twice, with and without -DBY_HAND: an engine and the calls that somebody would have
// written instead must be the same instructions. compare.cmake looks at each function's assembly.
// The ending is .cc because this is no test program: nothing here is ever run.
#include <tutti/core/engine.hpp>

using tutti::AfterBackward;
using tutti::BatchEnd;
using tutti::BatchStart;
using tutti::State;

extern volatile int effects;

struct Clips final {
  int limit = 3;
  void apply(AfterBackward, State&) const { effects = effects + limit; }
};
struct Averages final {
  int count = 0;
  void apply(BatchEnd, State&) { effects = ++count; }
};
struct Noise final {
  void apply(AfterBackward, State&) const { effects = effects + 1; }
};
struct Sometimes final {
  int seen = 0;
  bool match(BatchStart, const State&) const { return seen < 5; }
  void apply(BatchStart, State&) { ++seen; }
};
struct Watches final {
  void apply(BatchEnd, const State&) const { effects = 0; }
};

using Engine = tutti::Engine<Clips, Averages, Noise, Sometimes, Watches>;

// Nobody handles these three events.
extern "C" void fire_unhandled([[maybe_unused]] Engine& engine, [[maybe_unused]] State& state) {
#ifndef BY_HAND
  engine.fire<tutti::EvalStart>(state);
  engine.fire<tutti::BeforeForward>(state);
  engine.fire<tutti::PredictEnd>(state);
#endif
}

// After-events run in reverse: Noise, then Clips.
extern "C" void fire_reversed(Engine& engine, State& state) {
#ifdef BY_HAND
  engine.get<Noise>().apply(AfterBackward{}, state);
  engine.get<Clips>().apply(AfterBackward{}, state);
#else
  engine.fire<AfterBackward>(state);
#endif
}

// An algorithm, then a callback.
extern "C" void fire_two_roles(Engine& engine, State& state) {
#ifdef BY_HAND
  engine.get<Averages>().apply(BatchEnd{}, state);
  engine.get<Watches>().apply(BatchEnd{}, state);
#else
  engine.fire<BatchEnd>(state);
#endif
}

// A run-time condition is one comparison.
extern "C" void fire_if_matched(Engine& engine, State& state) {
#ifdef BY_HAND
  if (engine.get<Sometimes>().match(BatchStart{}, state)) {
    engine.get<Sometimes>().apply(BatchStart{}, state);
  }
#else
  engine.fire<BatchStart>(state);
#endif
}
