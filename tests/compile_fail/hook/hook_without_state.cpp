// error: names this event but cannot be called as apply
// culprit: Clip, AfterBackward
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void apply(tutti::AfterBackward) {}
#endif
};

template struct tutti::Recipe<Clip>;
