// error: OrderCycleCheck<Last, First>
// error: order rules of these policies go round in a circle
// culprit: Last, First
#include <tutti/core/recipe.hpp>

struct Last final {
  using runs_last = tutti::types<tutti::Init>;
  void apply(tutti::Init, tutti::State&) {}
};
struct First final {
  using runs_first = tutti::types<tutti::Init>;
#ifndef FIXED
  using runs_after = tutti::types<Last>;
#endif
  void apply(tutti::Init, tutti::State&) {}
};

template struct tutti::Recipe<Last, First>;
