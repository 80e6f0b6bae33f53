// error: tutti: a run cannot have its optimizer from this; give a description such as
// torch
#include <memory>

#include <torch/optim/sgd.h>

#include <tutti/optim/optimizer.hpp>

tutti::OptimizerSpec plain() {
#ifdef FIXED
  return [](torch::nn::Module& model) {
    return std::make_shared<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.1));
  };
#else
  return [](torch::nn::Module& model) {
    return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1));
  };
#endif
}
