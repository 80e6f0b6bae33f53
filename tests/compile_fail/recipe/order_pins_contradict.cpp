// error: OrderCycleCheck<Last, First>
// error: order rules of these policies go round in a circle
// culprit: Last, First
#include <tutti/core/recipe.hpp>

struct Last final {
  static constexpr tutti::Rules rules{.runs_last = {tutti::id<tutti::Init>}};
  void apply(tutti::Init, tutti::State&) {}
};
struct First final {
#ifdef FIXED
  static constexpr tutti::Rules rules{.runs_first = {tutti::id<tutti::Init>}};
#else
  static constexpr tutti::Rules rules{
      .runs_after = {{tutti::id<Last>}},
      .runs_first = {tutti::id<tutti::Init>},
  };
#endif
  void apply(tutti::Init, tutti::State&) {}
};

template struct tutti::Recipe<Last, First>;
