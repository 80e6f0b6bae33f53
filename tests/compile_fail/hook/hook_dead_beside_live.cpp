// error: HookCheck<Clip, tutti::AfterBackward>
// error: names this event but cannot be called as apply
// culprit: Clip, AfterBackward
#include <tutti/core/recipe.hpp>

// One hook that works does not hide another one that never would.
struct Clip final {
  void apply(tutti::BatchStart, tutti::State&) {}
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void apply(tutti::AfterBackward, tutti::State*) {}
#endif
};

template struct tutti::Recipe<Clip>;
