// error: the model's update_metric\(\) cannot be called as the loop does, so it would never be
// error: write void update_metric\(const tutti::Batch&, const tutti::Outputs&, tutti::Metric&\)
// culprit: Net
// torch
#include <torch/nn/module.h>

#include <tutti/core/model.hpp>

struct Net : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
#ifdef FIXED
  void update_metric(const tutti::Batch&, const tutti::Outputs&, tutti::Metric&) {}
#else
  void update_metric(const tutti::Outputs&, const tutti::Batch&, tutti::Metric&) {}
#endif
};

tutti::AnyModel model() {
  return tutti::AnyModel(std::make_shared<Net>());
}
