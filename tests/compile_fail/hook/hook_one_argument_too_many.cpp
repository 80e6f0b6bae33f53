// error: names this event but cannot be called as apply
// culprit: Clip, AfterBackward
#include <tutti/core/recipe.hpp>

// Composer's own signature, apply(event, state, logger); here the logger is state.logger.
struct Clip final {
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void apply(tutti::AfterBackward, tutti::State&, tutti::Logger&) {}
#endif
};

template struct tutti::Recipe<Clip>;
