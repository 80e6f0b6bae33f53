// error: MemberCheck<Warmup, tutti::member::run_before, tutti::member::runs_before>
// error: nobody looks for a member of the first of these names in a policy
// culprit: Warmup, run_before
#include <tutti/core/recipe.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};
struct Warmup final {
#ifdef FIXED
  using runs_before = tutti::types<Clip>;
#else
  using run_before = tutti::types<Clip>;
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Warmup, Clip>;
