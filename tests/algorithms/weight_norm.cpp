#include <tutti/algorithms/weight_norm.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/spectral_norm.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::WeightNorm;
using tutti::functional::apply_weight_norm;
namespace nn = tutti::nn;
namespace surgery = tutti::surgery;

static_assert(tutti::Algorithm<WeightNorm>);
static_assert(tutti::Recipe<WeightNorm>::valid);
static_assert(!tutti::detail::can_be_combined<WeightNorm, tutti::SpectralNorm>);
static_assert(sizeof(tutti::With<WeightNorm{.layers = {"head"}, .dim = -1}>) > 0);

nn::Sequential two() {
  at::manual_seed(1);
  return nn::Sequential(nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)), nn::Linear(5, 2));
}

}  // namespace

TEST_CASE("WeightNorm leaves what the model computes, and the optimizers in step",
          "[functional][weight_norm]") {
  auto model = two();
  const at::Tensor weight = model->parameters()[0];
  torch::optim::SGD optimizer(
      {torch::optim::OptimizerParamGroup({model->parameters()[0]}),
       torch::optim::OptimizerParamGroup(
           {model->parameters()[1], model->parameters()[2], model->parameters()[3]})},
      torch::optim::SGDOptions(0.1));
  const at::Tensor x = at::randn({2, 3, 5, 5});
  const at::Tensor before = model->forward(x);
  const auto report = apply_weight_norm(*model, {.layers = {"0"}}, optimizer);
  CHECK(report.replaced == std::vector<std::string>{"0"});
  CHECK(model->forward(x).allclose(before, 1e-5, 1e-6));
  const auto parameters = model->named_parameters();
  CHECK(parameters["0.parametrizations.weight.original1"].is_same(weight));
  CHECK(parameters["0.parametrizations.weight.original0"].sizes() == at::IntArrayRef{4, 1, 1, 1});
  CHECK(optimizer.param_groups()[0].params().size() == 2);  // the lengths beside the directions
  CHECK(surgery::count<nn::WeightNormed>(*model) == 1);
  CHECK(apply_weight_norm(*model, {}, optimizer).replaced == std::vector<std::string>{"1"});
  CHECK(apply_weight_norm(*model, {.if_none = surgery::IfNone::ignore}).replaced.empty());
}

TEST_CASE("WeightNorm says what it cannot find", "[weight_norm]") {
  CHECK_THROWS_WITH(WeightNorm{.dim = 1}.validate(), ContainsSubstring("dim is 1, expected 0"));
  auto model = two();
  CHECK_THROWS_WITH(apply_weight_norm(*model, {.layers = {"1", "head*"}}),
                    ContainsSubstring("\"head*\", which matches no Linear"));
  apply_weight_norm(*model);
  CHECK_THROWS_WITH(apply_weight_norm(*model), ContainsSubstring("has it already"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
