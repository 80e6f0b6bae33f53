#include <tutti/optim/optimizer.hpp>

#include "support/catch.hpp"

#include <memory>
#include <vector>

#include <tutti/optim/sgd.hpp>
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// A description of a user's own.
struct PlainDescent {
  double lr = 0.25;
  std::shared_ptr<torch::optim::SGD> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(lr));
  }
};
static_assert(OptimizerRecipe<PlainDescent> && OptimizerRecipe<SGD>);
static_assert(!OptimizerRecipe<int> && !std::is_convertible_v<int, OptimizerSpec>);

struct Options {
  OptimizerSpec optimizer{};
};

}  // namespace

TEST_CASE("an optimizer is given by a description, an object or a function", "[optim][spec]") {
  torch::nn::Linear model(3, 2);
  const auto built = [&](const OptimizerSpec& spec) {
    return spec.build(*model, model->parameters());
  };

  const auto described = built(SGD{.lr = 0.5});
  CHECK(described->parameters().size() == 2);
  CHECK(described->param_groups()[0].options().get_lr() == 0.5);
  CHECK(built(PlainDescent{})->param_groups()[0].options().get_lr() == 0.25);

  auto existing = std::make_shared<torch::optim::Adam>(model->parameters());
  CHECK(built(existing) == existing);
  auto unique = std::make_unique<torch::optim::Adam>(model->parameters());
  const auto* address = unique.get();
  CHECK(built(std::move(unique)).get() == address);

  const Options options{.optimizer = [](torch::nn::Module& module) {
    return SGD{.lr = 2.0}.build(std::vector<at::Tensor>{module.parameters()[0]});
  }};
  CHECK(built(options.optimizer)->parameters().size() == 1);
  CHECK(built(options.optimizer) != built(options.optimizer));
}

TEST_CASE("no optimizer is told apart and refused when one is needed", "[optim][spec][error]") {
  torch::nn::Linear model(3, 2);
  CHECK_FALSE(OptimizerSpec{});
  CHECK_FALSE(OptimizerSpec{nullptr});
  CHECK_FALSE(OptimizerSpec{std::shared_ptr<torch::optim::SGD>{}});
  CHECK(OptimizerSpec{SGD{.lr = 1}});
  CHECK_THROWS_WITH(OptimizerSpec{}.build(*model, {}), ContainsSubstring("none was given"));
  const OptimizerSpec null = [](torch::nn::Module&) {
    return std::shared_ptr<torch::optim::SGD>{};
  };
  CHECK_THROWS_WITH(null.build(*model, {}), ContainsSubstring("returned a null pointer"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
