// error: ListCheck<Warmup, tutti::member::conflicts_with>
// error: has to be a list, and this is none
// culprit: Warmup, conflicts_with
#include <tutti/core/recipe.hpp>

struct Warmup final {
#ifdef FIXED
  using conflicts_with = tutti::types<tutti::sets_learning_rate>;
#else
  using conflicts_with = tutti::sets_learning_rate;
#endif
  void apply(tutti::BatchStart, tutti::State&) {}
};

template struct tutti::Recipe<Warmup>;
