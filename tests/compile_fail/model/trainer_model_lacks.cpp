// error: ModelCheck<ALiBi, .*Net
// error: this policy cannot work on this model
// culprit: ALiBi, Net
// torch
#include <torch/nn/module.h>

#include <tutti/trainer.hpp>

struct ALiBi final {
  template <class Model>
  static constexpr bool supports = tutti::offers<Model, tutti::has_attention>;
  void apply(tutti::Init, tutti::State&) {}
};
struct Net : torch::nn::Module {
#ifdef FIXED
  using model_features = tutti::types<tutti::takes_images, tutti::has_attention>;
#else
  using model_features = tutti::types<tutti::takes_images>;
#endif
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
};

void train(std::shared_ptr<Net> net) {
  tutti::Trainer<ALiBi> trainer{net};
}
