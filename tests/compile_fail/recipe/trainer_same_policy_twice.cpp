// error: lists this policy more than once
// culprit: Clip
// torch
#include <tutti/trainer.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};

// The same one sentence when a recipe is met where users meet it.
void train(tutti::AnyModel model, tutti::TrainerOptions options) {
#ifdef FIXED
  tutti::Trainer trainer{model, options, Clip{}};
#else
  tutti::Trainer trainer{model, options, Clip{}, Clip{}};
#endif
  trainer.fit();
}
