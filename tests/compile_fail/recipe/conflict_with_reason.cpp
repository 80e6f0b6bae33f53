// error: ConflictCheck<EMA, SWA
// error: these two policies conflict
// culprit: EMA, SWA
#include <tutti/core/recipe.hpp>

struct EMA final {
  using tags = tutti::types<tutti::averages_weights>;
  using conflicts_with = tutti::types<tutti::because<tutti::averages_weights,
                                                     "two averages of the "
                                                     "weights disturb each other">>;
  void apply(tutti::BatchEnd, tutti::State&) {}
};
struct SWA final {
#ifndef FIXED
  using tags = tutti::types<tutti::averages_weights>;
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<EMA, SWA>;
