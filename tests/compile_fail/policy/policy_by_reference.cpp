// error: is not a struct and so no policy
// culprit: Clip
#include <tutti/core/recipe.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};

#ifdef FIXED
template struct tutti::Recipe<Clip>;
#else
template struct tutti::Recipe<Clip&>;
#endif
