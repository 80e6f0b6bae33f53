// error: the model's metrics\(\) cannot be called with a bool, or returns no tutti::Metrics
// error: write tutti::Metrics metrics\(bool train\) const, or give it another name
// culprit: Net
// torch
#include <torch/nn/module.h>

#include <tutti/core/model.hpp>

struct Net : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
#ifdef FIXED
  tutti::Metrics metrics(bool) const { return {}; }
#else
  tutti::Metrics metrics() const { return {}; }
#endif
};

tutti::AnyModel model() {
  return tutti::AnyModel(std::make_shared<Net>());
}
