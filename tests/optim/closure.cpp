#include <tutti/optim/closure.hpp>

#include <memory>
#include <vector>

#include <ATen/ops/ones.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Descent : torch::optim::Optimizer, tutti::optim::CallsClosure {
  explicit Descent(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure closure) override { return closure(); }
};
struct SteepDescent final : Descent {
  using Descent::Descent;
};

}  // namespace

TEST_CASE("an optimizer calls a closure when it is LBFGS or says so", "[optim][closure]") {
  using tutti::optim::calls_closure;
  using tutti::optim::ClosureOptimizer;
  static_assert(ClosureOptimizer<torch::optim::LBFGS>);
  static_assert(ClosureOptimizer<SteepDescent>);
  static_assert(!ClosureOptimizer<torch::optim::Adam>);
  static_assert(!ClosureOptimizer<torch::optim::Optimizer>);  // who knows
  const std::vector<at::Tensor> weights{at::ones({2})};
  CHECK(calls_closure(torch::optim::LBFGS(weights)));
  CHECK(calls_closure(SteepDescent(weights)));
  CHECK_FALSE(calls_closure(torch::optim::SGD(weights, 0.1)));
  CHECK_FALSE(calls_closure(torch::optim::Adam(weights)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
