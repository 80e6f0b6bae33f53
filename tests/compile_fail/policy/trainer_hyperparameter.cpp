// error: HyperparameterCheck<MixUp, .*-1.*alpha
// error: a hyperparameter of this policy is out of its range
// culprit: MixUp, alpha
// torch
#include <tutti/core/validate.hpp>
#include <tutti/core/with.hpp>
#include <tutti/trainer.hpp>

struct MixUp final {
  double alpha = 0.2;
  constexpr void validate() const { tutti::expect(alpha >= 0, "MixUp: alpha", alpha, "0 or more"); }
  void apply(tutti::BeforeForward, tutti::State&) {}
};

void train(const tutti::AnyModel& model) {
#ifdef FIXED
  tutti::Trainer<tutti::With<MixUp{.alpha = 0.3}>> trainer{model};
#else
  tutti::Trainer<tutti::With<MixUp{.alpha = -1.0}>> trainer{model};
#endif
}
