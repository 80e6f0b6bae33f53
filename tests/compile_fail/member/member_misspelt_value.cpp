// error: MemberCheck<Warmup, tutti::member::rule, tutti::member::rules>
// error: give it the second
// culprit: Warmup, rule
#include <tutti/core/recipe.hpp>

struct Warmup final {
#ifdef FIXED
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::sets_learning_rate>}};
#else
  static constexpr tutti::Rules rule{.tags = {tutti::id<tutti::sets_learning_rate>}};
#endif
  void apply(tutti::BatchStart, tutti::State&) {}
};

template struct tutti::Recipe<Warmup>;
