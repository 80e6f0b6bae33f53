// error: AfterBackwards
// culprit: AfterBackwards
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void apply(tutti::AfterBackwards, tutti::State&) {}
#endif
};

template struct tutti::Recipe<Clip>;
