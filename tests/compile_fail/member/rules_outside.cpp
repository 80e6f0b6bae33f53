// error: FieldCheck<Warmup, tutti::member::runs_before, tutti::Rules>
// error: it is a field of a value: static constexpr tutti::Rules rules
// culprit: Warmup, runs_before
#include <tutti/core/recipe.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};
struct Warmup final {
#ifdef FIXED
  static constexpr tutti::Rules rules{.runs_before = {{tutti::id<Clip>}}};
#else
  using runs_before = tutti::types<Clip>;
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Warmup, Clip>;
