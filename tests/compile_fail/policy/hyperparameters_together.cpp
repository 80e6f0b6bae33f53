// error: HyperparameterCheck<Warmup
// error: these hyperparameters of the policy do not go together
// culprit: Warmup
// torch
#include <tutti/core/recipe.hpp>
#include <tutti/core/validate.hpp>

struct Warmup final {
  int begin = 0;
  int end = 1;
  constexpr void validate() const {
    tutti::expect(begin < end, "Warmup: begin is not before end; exchange them.");
  }
  void apply(tutti::BatchStart, tutti::State&) {}
};

#ifdef FIXED
static_assert(tutti::Recipe<tutti::With<Warmup{.begin = 0, .end = 5}>>::valid);
#else
static_assert(tutti::Recipe<tutti::With<Warmup{.begin = 5, .end = 0}>>::valid);
#endif
