// error: ValueCheck<Warmup, tutti::member::events>
// error: has to be a list, and this is none
// culprit: Warmup, events
#include <tutti/core/recipe.hpp>

struct Warmup final {
#ifdef FIXED
  using events = tutti::types<tutti::BatchStart>;
#else
  using events = tutti::BatchStart;
#endif
  void apply(tutti::BatchStart, tutti::State&) {}
};

template struct tutti::Recipe<Warmup>;
