// error: ConflictCheck<EMA, SWA
// error: these two policies conflict
// culprit: EMA, SWA
#include <tutti/core/recipe.hpp>

struct EMA final {
  static constexpr tutti::Rules rules{
      .tags = {tutti::id<tutti::averages_weights>},
      .conflicts_with = {{tutti::id<tutti::averages_weights>,
                          "two averages of the "
                          "weights disturb each other"}},
  };
  void apply(tutti::BatchEnd, tutti::State&) {}
};
struct SWA final {
#ifndef FIXED
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::averages_weights>}};
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<EMA, SWA>;
