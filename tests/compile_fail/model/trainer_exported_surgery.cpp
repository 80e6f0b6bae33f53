// error: ModelCheck<Blur, .*Net
// error: this policy replaces layers or stores weights in another order
// error: an exported model has no layers; change the model in Python before the export
// culprit: Blur, Net
// torch
#include <torch/nn/module.h>

#include <tutti/trainer.hpp>

struct Blur final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::changes_model>}};
  void apply(tutti::Init, tutti::State&) {}
};
struct Net : torch::nn::Module {
#ifdef FIXED
  using model_features = tutti::types<tutti::takes_images>;
#else
  using model_features = tutti::types<tutti::is_compiled>;
#endif
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
};

void train(std::shared_ptr<Net> net) {
  tutti::Trainer<Blur> trainer{net};
}
