// error: ConstCheck<Count, tutti::BatchEnd>
// error: the policy is const in this recipe and its apply() for this event is not
// culprit: Count, BatchEnd
#include <tutti/core/recipe.hpp>

struct Count final {
  void apply(tutti::FitStart, tutti::State&) const {}
#ifdef FIXED
  void apply(tutti::BatchEnd, tutti::State&) const {}
#else
  void apply(tutti::BatchEnd, tutti::State&) {}
#endif
};

template struct tutti::Recipe<const Count>;
