// error: ModelCheck<LabelSmoothing, .*Segmenter
// error: this policy cannot work on this model
// culprit: LabelSmoothing, Segmenter
// torch
#include <torch/nn/module.h>

#include <tutti/trainer.hpp>

struct LabelSmoothing final {
  template <class Model>
  static constexpr bool supports = !tutti::lists<Model, tutti::loss_takes_indices>;
  void apply(tutti::BeforeLoss, tutti::State&) {}
};
struct Segmenter : torch::nn::Module {
#ifdef FIXED
  using model_features = tutti::types<tutti::takes_images>;
#else
  using model_features = tutti::types<tutti::takes_images, tutti::loss_takes_indices>;
#endif
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
};

void train(std::shared_ptr<Segmenter> model) {
  tutti::Trainer<LabelSmoothing> trainer{model};
}
