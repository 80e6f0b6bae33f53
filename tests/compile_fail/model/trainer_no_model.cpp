// error: this is no model; give it Outputs forward(const Batch&)
// culprit: Net
// torch
#include <torch/nn/modules/linear.h>

#include <tutti/models/classifier.hpp>
#include <tutti/trainer.hpp>

struct Net : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};

#ifdef FIXED
void train(std::shared_ptr<Net> net) {
  tutti::Trainer<> trainer{tutti::Classifier{net}};
}
#else
void train(std::shared_ptr<Net> net) {
  tutti::Trainer<> trainer{net};
}
#endif
