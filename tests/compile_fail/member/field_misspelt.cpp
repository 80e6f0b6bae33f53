// error: Rules
// error: run_before
// culprit: run_before
#include <tutti/core/recipe.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};
struct Warmup final {
#ifdef FIXED
  static constexpr tutti::Rules rules{.runs_before = {{tutti::id<Clip>, "it warms gradients up"}}};
#else
  static constexpr tutti::Rules rules{.run_before = {{tutti::id<Clip>, "it warms gradients up"}}};
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Warmup, Clip>;
