// error: ConflictCheck<CutMix, MixUp>
// error: these two policies conflict
// culprit: CutMix, MixUp
#include <tutti/core/recipe.hpp>

struct MixUp final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::mixes_inputs>}};
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct CutMix final {
  static constexpr tutti::Rules rules{.conflicts_with = {{tutti::id<tutti::mixes_inputs>}}};
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};

#ifdef FIXED
template struct tutti::Recipe<Clip, CutMix>;
#else
template struct tutti::Recipe<MixUp, Clip, CutMix>;
#endif
