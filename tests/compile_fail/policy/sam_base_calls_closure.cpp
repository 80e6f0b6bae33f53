// error: calls a closure in its own step, as LBFGS does; take one that does not
// culprit: LBFGS
// torch
#include <tutti/algorithms/sam.hpp>
#include <memory>
#include <vector>
#include <torch/optim/sgd.h>
tutti::functional::SAMOptimizer sharp(const std::vector<at::Tensor>& weights) {
#ifdef FIXED
  return tutti::functional::SAMOptimizer(std::make_shared<torch::optim::SGD>(weights, 0.1));
#else
  return tutti::functional::SAMOptimizer(std::make_shared<torch::optim::LBFGS>(weights));
#endif
}
