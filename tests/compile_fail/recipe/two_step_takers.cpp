// error: take the optimizer's step into their own hands .*; keep one of them
// culprit: Climb, Descend
// torch
#include <tutti/train/step.hpp>

struct Climb final {
  void apply(tutti::BatchStart, tutti::State&) {}
  void step(tutti::State&, auto&& closure, auto&& update) const {
    if (closure(true)) {
      update();
    }
  }
};
struct Descend final {
  void apply(tutti::BatchStart, tutti::State&) {}
#ifndef FIXED
  void step(tutti::State&, auto&& closure, auto&& update) const {
    if (closure(true)) {
      update();
    }
  }
#endif
};

static_assert(sizeof(tutti::train::Step<tutti::Engine<Climb, Descend>>) > 0);
