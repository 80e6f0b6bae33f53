// error: returns a value, which nobody would read
// culprit: StopAfter, BatchEnd
#include <tutti/core/recipe.hpp>

struct StopAfter final {
#ifdef FIXED
  void apply(tutti::BatchEnd, tutti::State&) {}
#else
  bool apply(tutti::BatchEnd, tutti::State&) { return true; }
#endif
};

template struct tutti::Recipe<StopAfter>;
