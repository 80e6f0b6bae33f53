// error: is no policy, it acts on no event
// culprit: GradientNoise
#include <tutti/core/recipe.hpp>

struct GradientNoise final {
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#else
  void perturb(tutti::State&) {}
#endif
};

template struct tutti::Recipe<GradientNoise>;
