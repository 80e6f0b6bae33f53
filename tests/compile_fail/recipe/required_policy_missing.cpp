// error: RequiredPolicyCheck<SampleWeights, tutti::mixes_inputs, false>
// error: which the recipe lacks
// culprit: SampleWeights, mixes_inputs
#include <tutti/core/recipe.hpp>

struct MixUp final {
  using tags = tutti::types<tutti::mixes_inputs>;
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct SampleWeights final {
  using requires_policy = tutti::types<tutti::mixes_inputs>;
  void apply(tutti::BeforeLoss, tutti::State&) {}
};

#ifdef FIXED
template struct tutti::Recipe<MixUp, SampleWeights>;
#else
template struct tutti::Recipe<SampleWeights>;
#endif
