// error: take the optimizer's step into their own hands .*; keep one of them
// culprit: PerturbedWeights, Descend
// torch
#include <tutti/train/step.hpp>

struct PerturbedWeights final {
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

static_assert(sizeof(tutti::train::Step<tutti::Engine<PerturbedWeights, Descend>>) > 0);
