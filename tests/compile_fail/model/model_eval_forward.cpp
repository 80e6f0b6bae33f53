// error: the model's eval_forward\(\) cannot be called as the loop does, so it would never be
// error: write tutti::Outputs eval_forward\(const tutti::Batch&\)
// culprit: Net
// torch
#include <torch/nn/module.h>

#include <tutti/core/model.hpp>

struct Net : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
#ifdef FIXED
  tutti::Outputs eval_forward(const tutti::Batch& batch) { return batch.inputs(); }
#else
  tutti::Outputs eval_forward(tutti::Batch& batch) { return batch.inputs(); }
#endif
};

tutti::AnyModel model() {
  return tutti::AnyModel(std::make_shared<Net>());
}
