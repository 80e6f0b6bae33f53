// error: HyperparameterCheck<MixUp, .*-1.*alpha
// error: a hyperparameter of this policy is out of its range
// culprit: MixUp, alpha
// torch
#include <tutti/core/recipe.hpp>
#include <tutti/core/validate.hpp>

struct MixUp final {
  double alpha = 0.2;
  constexpr void validate() const { tutti::expect(alpha >= 0, "MixUp: alpha", alpha, "0 or more"); }
  void apply(tutti::BeforeForward, tutti::State&) {}
};

#ifdef FIXED
static_assert(tutti::Recipe<tutti::With<MixUp{.alpha = 0.3}>>::valid);
#else
static_assert(tutti::Recipe<tutti::With<MixUp{.alpha = -1.0}>>::valid);
#endif
