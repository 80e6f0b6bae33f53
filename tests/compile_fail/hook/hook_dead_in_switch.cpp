// error: HookCheck<Clip, tutti::AfterBackward>
// error: names this event but cannot be called as apply(Event, tutti::State&)
// culprit: Clip, AfterBackward
#include <tutti/core/recipe.hpp>
#include <tutti/core/switch.hpp>

struct Clip final {
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void apply(tutti::AfterBackward, int) {}
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<tutti::Switch<Clip>>;
