// error: apply\(\) takes this event but the policy's `events` list lacks it
// culprit: Clip, AfterBackward
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  using events = tutti::types<tutti::AfterBackward, tutti::AfterTrainBatch>;
#else
  using events = tutti::types<tutti::AfterTrainBatch>;
#endif
  void apply(tutti::AfterTrainBatch, tutti::State&) {}
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
