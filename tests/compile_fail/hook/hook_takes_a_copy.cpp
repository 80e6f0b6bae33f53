// error: names this event but cannot be called as apply
// culprit: Stop, BatchEnd
// torch
#include <tutti/core/recipe.hpp>
#include <tutti/core/state.hpp>

struct Stop final {
  void apply(tutti::EpochEnd, tutti::State&) {}
#ifdef FIXED
  void apply(tutti::BatchEnd, tutti::State& state) { state.stop_training(); }
#else
  void apply(tutti::BatchEnd, tutti::State state) { state.stop_training(); }
#endif
};

static_assert(tutti::Recipe<Stop>::valid);
