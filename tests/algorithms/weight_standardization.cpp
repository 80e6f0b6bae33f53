#include <tutti/algorithms/weight_standardization.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/nn/sequential.hpp>

#include "nn/golden_model.hpp"
#include "support/hyperparameters.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using tutti::WeightStandardization;
using tutti::functional::apply_weight_standardization;
using tutti::functional::standardize_weights;
using ConvOptions = torch::nn::Conv2dOptions;

static_assert(tutti::Algorithm<WeightStandardization>);
static_assert(sizeof(tutti::With<WeightStandardization{.ignore = {"head"}}>) > 0);
static_assert(
    std::is_same_v<tutti::Recipe<WeightStandardization, tutti::BlurPool,
                                 tutti::SqueezeExcite>::order<tutti::Init>,
                   tutti::types<tutti::SqueezeExcite, tutti::BlurPool, WeightStandardization>>);

nn::Sequential two() {
  return nn::Sequential(nn::Conv2d(3, 4, 3), nn::Conv2d(4, 5, 1));
}

}  // namespace

TEST_CASE("standardised weights have mean 0 and variance 1 in each output channel",
          "[functional][weight_standardization][law]") {
  const at::Tensor w = torch::randn({6, 3, 3, 3}) * 3 + 2;
  const at::Tensor s = standardize_weights(w).flatten(1);
  CHECK(s.mean(1).abs().max().item<double>() < 1e-5);
  CHECK((s.var(1, false) - 1).abs().max().item<double>() < 1e-5);
  CHECK(standardize_weights(w * 4 + 1).allclose(standardize_weights(w), 1e-4, 1e-5));
}

TEST_CASE("the gradient of standardised weights is that of finite differences",
          "[functional][weight_standardization][law]") {
  const at::Tensor w = torch::randn({2, 3}, torch::kDouble).requires_grad_();
  const at::Tensor g = torch::randn({2, 3}, torch::kDouble);
  standardize_weights(w).mul(g).sum().backward();
  const torch::NoGradGuard no_grad;
  for (std::int64_t i = 0; i < w.numel(); ++i) {
    const double h = 1e-6;
    const auto at_offset = [&](double offset) {
      at::Tensor moved = w.detach().clone();
      moved.view(-1)[i] += offset;
      return standardize_weights(moved).mul(g).sum().item<double>();
    };
    const double slope = (at_offset(h) - at_offset(-h)) / (2 * h);
    CHECK(std::abs(slope - w.grad().view(-1)[i].item<double>()) < 1e-7);
  }
}

TEST_CASE("a convolution computes with standardised weights and trains the raw ones",
          "[surgery][weight_standardization]") {
  nn::Sequential net(nn::Conv2d(ConvOptions(3, 4, 3).padding(1).padding_mode(torch::kCircular)),
                     torch::nn::Conv2d(ConvOptions(4, 5, 1).bias(false)));
  const auto before = net->parameters();
  torch::optim::SGD optimizer(before, torch::optim::SGDOptions(0.1));
  const at::Tensor x = torch::randn({2, 3, 5, 5});
  CHECK(apply_weight_standardization(*net, {}, optimizer).replaced ==
        std::vector<std::string>{"0", "1"});
  CHECK(golden::state_keys(*net) == std::vector<std::string>{"0.bias",
                                                             "0.parametrizations.weight.original",
                                                             "1.parametrizations.weight.original"});
  CHECK(net->named_parameters()["0.parametrizations.weight.original"].is_same(before[0]));
  CHECK(optimizer.param_groups()[0].params()[0].is_same(before[0]));

  nn::Conv2d first(ConvOptions(3, 4, 3).padding(1).padding_mode(torch::kCircular));
  first->weight = standardize_weights(before[0]);
  first->bias = before[1];
  const at::Tensor want = at::conv2d(first(x), standardize_weights(before[2]));
  const at::Tensor y = net->forward(x);
  CHECK(y.allclose(want, 1e-5, 1e-5));
  y.sum().backward();
  CHECK(before[0].grad().defined());
  optimizer.step();
  CHECK_FALSE(net->forward(x).equal(y));
}

TEST_CASE("moving a standardised convolution moves what it computes with",
          "[surgery][weight_standardization]") {
  auto net = two();
  apply_weight_standardization(*net);
  net->to(torch::kDouble);
  CHECK(net->forward(torch::randn({1, 3, 4, 4}, torch::kDouble)).scalar_type() == torch::kDouble);
}

TEST_CASE("the last convolutions and those named stay as they are",
          "[surgery][weight_standardization]") {
  for (const auto& [ignored, changed] : {std::pair{0, 2}, {1, 1}, {3, 0}}) {
    auto net = two();
    const auto report = apply_weight_standardization(
        *net, {.n_last_layers_ignore = ignored, .if_none = surgery::IfNone::ignore});
    CHECK(report.count() == changed);
  }
  nn::Sequential net;
  net->push_back("body", two());
  net->push_back("bodyguard", nn::Conv2d(5, 2, 1));
  CHECK(apply_weight_standardization(*net, {.ignore = {"body"}}).replaced ==
        std::vector<std::string>{"bodyguard"});
  CHECK(apply_weight_standardization(*net, {.ignore = {"body.1"}}).replaced ==
        std::vector<std::string>{"body.0"});
  CHECK_THROWS_WITH(apply_weight_standardization(*net, {.ignore = {"body", "bod"}}),
                    ContainsSubstring("ignore has \"bod\", and the model has no module"));
}

TEST_CASE("a convolution with one weight per channel stays, and nothing is standardised twice",
          "[surgery][weight_standardization][law]") {
  nn::Sequential net(nn::Conv2d(ConvOptions(4, 4, 1).groups(4)), nn::Conv1d(3, 4, 3),
                     nn::Conv3d(2, 2, 2), torch::nn::ConvTranspose2d(4, 4, 2));
  CHECK(apply_weight_standardization(*net).replaced == std::vector<std::string>{"1", "2"});
  const auto keys = golden::state_keys(*net);
  CHECK(apply_weight_standardization(*net, {.if_none = surgery::IfNone::ignore}).count() == 0);
  CHECK(golden::state_keys(*net) == keys);
  CHECK_THROWS_WITH(apply_weight_standardization(*net),
                    ContainsSubstring("WeightStandardization: no convolution was replaced: it "
                                      "passed over 0 (one weight per output channel, which would "
                                      "become zero); 1, 2 (standardised already)."));
  // It counts among the last all the same.
  nn::Sequential last(nn::Conv2d(3, 4, 3), nn::Conv2d(4, 4, 3),
                      nn::Conv2d(ConvOptions(4, 4, 1).groups(4)));
  CHECK(apply_weight_standardization(*last, {.n_last_layers_ignore = 1}).replaced ==
        std::vector<std::string>{"0", "1"});
  nn::Sequential two(nn::Conv2d(3, 4, 3), nn::Conv2d(4, 4, 3));
  CHECK_THROWS_WITH(
      apply_weight_standardization(*two, {.n_last_layers_ignore = 1, .ignore = {"0"}}),
      ContainsSubstring("it passed over 0 (in the option ignore); 1 (among the last 1, as "
                        "n_last_layers_ignore says)."));
  CHECK_THROWS_AS(apply_weight_standardization(*net, {.n_last_layers_ignore = -1}),
                  c10::ValueError);
}

TEST_CASE("WeightStandardization reaches the convolution inside a blurred and gated one",
          "[surgery][weight_standardization]") {
  nn::Sequential net(nn::Conv2d(ConvOptions(4, 8, 3).stride(2).padding(1)));
  const at::Tensor weight = net->parameters()[0];
  tutti::functional::apply_squeeze_excite(*net, {.latent_channels = 2, .min_channels = 1});
  tutti::functional::apply_blurpool(*net, {.min_channels = 1});
  apply_weight_standardization(*net);
  CHECK(net->named_parameters()["0.conv.conv.parametrizations.weight.original"].is_same(weight));
  const at::Tensor x = torch::randn({2, 4, 6, 6});
  const at::Tensor y = net->forward(x);
  const torch::NoGradGuard no_grad;
  at::Tensor(weight).mul_(5);
  CHECK(net->forward(x).allclose(y, 1e-4, 1e-5));
}

TEST_CASE("WeightStandardization changes the model at Init and logs how many layers it changed",
          "[weight_standardization]") {
  tutti::State state;
  auto net = two();
  state.model = net.ptr();
  Hyperparameters seen(state);
  WeightStandardization{}.apply(tutti::Init{}, state);
  CHECK(seen.counts ==
        Hyperparameters::Counts{{"WeightStandardization/num_weights_standardized", 2}});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
