// error: lists this policy more than once
// culprit: Clip
#include <tutti/core/engine.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};

// The same one sentence when the recipe is met through an engine, as in a Trainer.
#ifdef FIXED
tutti::Engine<Clip> engine;
#else
tutti::Engine<Clip, Clip> engine;
#endif
