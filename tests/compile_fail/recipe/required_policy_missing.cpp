// error: RequiredPolicyCheck<SampleWeights, .*Mark<tutti::mixes_inputs>::at
// error: which the recipe lacks
// culprit: SampleWeights, mixes_inputs
#include <tutti/core/recipe.hpp>

struct MixUp final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::mixes_inputs>}};
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct SampleWeights final {
  static constexpr tutti::Rules rules{.requires_policy = {{tutti::id<tutti::mixes_inputs>}}};
  void apply(tutti::BeforeLoss, tutti::State&) {}
};

#ifdef FIXED
template struct tutti::Recipe<MixUp, SampleWeights>;
#else
template struct tutti::Recipe<SampleWeights>;
#endif
