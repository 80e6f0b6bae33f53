// error: `events` list has this event but no apply\(\) takes it
// culprit: Clip, AfterBackward
#include <tutti/core/recipe.hpp>

struct Clip final {
  using events = tutti::types<tutti::AfterBackward, tutti::AfterTrainBatch>;
  void apply(tutti::AfterTrainBatch, tutti::State&) {}
#ifdef FIXED
  void apply(tutti::AfterBackward, tutti::State&) {}
#endif
};

template struct tutti::Recipe<Clip>;
