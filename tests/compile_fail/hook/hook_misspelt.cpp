// error: NameCheck<Clip>
// error: but is not called apply
// culprit: Clip
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void aply(tutti::AfterBackward, tutti::State&) {}
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
