// error: OrderCycleCheck<First, Second, Third>
// error: order rules of these policies go round in a circle
// culprit: First, Second, Third
#include <tutti/core/recipe.hpp>

struct First final {
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Second final {
  static constexpr tutti::Rules rules{.runs_after = {{tutti::id<First>}}};
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Third final {
#ifndef FIXED
  static constexpr tutti::Rules rules{
      .runs_before = {{tutti::id<First>}},
      .runs_after = {{tutti::id<Second>}},
  };
#endif
  void apply(tutti::BeforeForward, tutti::State&) {}
};
struct Apart final {
  void apply(tutti::BeforeForward, tutti::State&) {}
};

template struct tutti::Recipe<Apart, First, Second, Third>;
