// error: this model holds no parameters that the trainer can find; derive it from torch::nn::Module
// culprit: Net
// torch
#include <torch/nn/module.h>

#include <tutti/core/model.hpp>

#ifdef FIXED
struct Net : torch::nn::Module {
#else
struct Net {
#endif
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
};

tutti::AnyModel model() {
  return tutti::AnyModel(std::make_shared<Net>());
}
