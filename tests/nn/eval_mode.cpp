#include <tutti/nn/eval_mode.hpp>

#include "support/catch.hpp"

#include <memory>
#include <vector>

#include <tutti/nn/dropout.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Tower : torch::nn::Module {
  Tower() {
    auto floor = register_module("floor", std::make_shared<torch::nn::Module>());
    floor->register_module("left", std::make_shared<torch::nn::Module>());
    floor->register_module("right", tutti::nn::Dropout(0.5).ptr());
    register_module("roof", std::make_shared<torch::nn::Module>());
  }
};

std::vector<bool> modes(const torch::nn::Module& model) {
  std::vector<bool> out = {model.is_training()};
  for (const auto& module : model.modules(/*include_self=*/false)) {
    out.push_back(module->is_training());
  }
  return out;
}

}  // namespace

TEST_CASE("every module has its own mode back after a while of evaluation", "[nn]") {
  Tower tower;  // owned by nobody
  const auto frozen = tower.named_children()["floor"];
  frozen->train(false);
  frozen->named_children()["right"]->train();
  const std::vector<bool> before = modes(tower);
  REQUIRE(before == std::vector<bool>{true, false, false, true, true});
  {
    const tutti::nn::EvalMode eval(tower);
    CHECK(modes(tower) == std::vector<bool>(5, false));
    tower.train();  // what somebody does within it does not matter
  }
  CHECK(modes(tower) == before);
  tower.eval();
  {
    const tutti::nn::EvalMode eval(tower);
  }
  CHECK(modes(tower) == std::vector<bool>(5, false));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
