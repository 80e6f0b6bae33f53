// error: lists this policy more than once
// culprit: MixUp
#include <tutti/core/recipe.hpp>

struct MixUp final {
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};

#ifdef FIXED
template struct tutti::Recipe<MixUp, Clip>;
#else
template struct tutti::Recipe<MixUp, Clip, MixUp>;
#endif
