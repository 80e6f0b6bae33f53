// error: OrderCycleCheck<First, Second, Third>
// error: order rules of these policies go round in a circle
// culprit: First, Second, Third
#include <tutti/core/recipe.hpp>

struct First final {
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Second final {
  using runs_after = tutti::types<First>;
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Third final {
#ifndef FIXED
  using runs_before = tutti::types<First>;
#endif
  using runs_after = tutti::types<Second>;
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Apart final {
  void apply(tutti::BeforeForward, tutti::State&) {}
};

template struct tutti::Recipe<Apart, First, Second, Third>;
