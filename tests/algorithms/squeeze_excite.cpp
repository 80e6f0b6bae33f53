#include <tutti/algorithms/squeeze_excite.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/core/recipe.hpp>

#include "nn/golden_model.hpp"
#include "support/hyperparameters.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using tutti::SqueezeExcite;
using tutti::functional::apply_squeeze_excite;

static_assert(tutti::Algorithm<SqueezeExcite>);
static_assert(sizeof(tutti::With<SqueezeExcite{.latent_channels = 0.25}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<tutti::BlurPool, SqueezeExcite>::order<tutti::Init>,
                             tutti::types<SqueezeExcite, tutti::BlurPool>>);

// A net with members, as a user writes it: `narrow` has too few channels.
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return wide(narrow(x)); }
  nn::Conv2d narrow = register_module("narrow", nn::Conv2d(4, 8, 1));
  nn::Conv2d wide =
      register_module("wide", nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).stride(2).padding(1)));
};

}  // namespace

TEST_CASE("a gate stands behind every convolution with enough channels in and out",
          "[surgery][squeeze_excite]") {
  auto net = std::make_shared<NetImpl>();
  const at::Tensor weight = net->wide->weight;
  const at::Tensor x = torch::randn({2, 4, 8, 8});
  const at::Tensor before = net->forward(x);
  const auto report = apply_squeeze_excite(*net, {.latent_channels = 2, .min_channels = 8});
  CHECK(report.replaced == std::vector<std::string>{"wide"});
  CHECK(net->named_parameters()["wide.conv.weight"].is_same(weight));
  CHECK(net->forward(x).sizes() == before.sizes());

  const auto gated =
      std::dynamic_pointer_cast<nn::SqueezeExciteConv2dImpl>(net->named_children()["wide"]);
  REQUIRE(gated != nullptr);
  const torch::NoGradGuard no_grad;
  gated->se->named_parameters()["pool_and_mlp.4.weight"].zero_();
  CHECK(net->forward(x).allclose(before / 2));
}

TEST_CASE("the gate is the perceptron of the channels' means", "[nn][squeeze_excite][law]") {
  nn::SqueezeExcite2d gate(6, 3);
  const at::Tensor means = torch::randn({2, 6});
  const at::Tensor x = means.view({2, 6, 1, 1}).expand({2, 6, 4, 5});
  const auto weights = gate->named_parameters();
  const at::Tensor inner = means.mm(weights["pool_and_mlp.2.weight"].t()).relu();
  const at::Tensor factor = inner.mm(weights["pool_and_mlp.4.weight"].t()).sigmoid();
  CHECK(gate(x).allclose(x * factor.view({2, 6, 1, 1}), 1e-5, 1e-6));
  const auto copy = std::dynamic_pointer_cast<nn::SqueezeExcite2dImpl>(gate->clone());
  CHECK(copy->forward(x).equal(gate(x)));
}

TEST_CASE("a gate's width is a number of channels or a fraction of them, and at least one",
          "[nn][squeeze_excite]") {
  CHECK(nn::SqueezeExcite2dImpl::width(64, 128) == 64);
  CHECK(nn::SqueezeExcite2dImpl::width(0.125, 64) == 8);
  CHECK(nn::SqueezeExcite2dImpl::width(1.0, 64) == 1);
  CHECK(nn::SqueezeExcite2dImpl::width(6.7, 64) == 6);
  CHECK_THROWS_AS(nn::SqueezeExcite2d(4), c10::ValueError);
  CHECK_THROWS_WITH(nn::SqueezeExcite2d(4, 0.125),
                    ContainsSubstring("latent_channels 0.125 of 4 channels are less than 1"));
}

TEST_CASE("gates join the group of their convolution's weight, in its dtype",
          "[surgery][squeeze_excite]") {
  NetImpl net;
  net.to(torch::kDouble);
  using Group = torch::optim::OptimizerParamGroup;
  auto options = [](double decay) {
    return std::make_unique<torch::optim::SGDOptions>(
        torch::optim::SGDOptions(0.1).weight_decay(decay));
  };
  torch::optim::SGD optimizer(
      std::vector<Group>{Group({net.narrow->bias, net.wide->bias}, options(0)),
                         Group({net.narrow->weight, net.wide->weight}, options(0.1))},
      torch::optim::SGDOptions(0.1));
  apply_squeeze_excite(net, {.latent_channels = 0.5, .min_channels = 8}, optimizer);
  CHECK(optimizer.param_groups()[0].params().size() == 2);
  CHECK(optimizer.param_groups()[1].params().size() == 4);
  CHECK(optimizer.param_groups()[1].params()[3].scalar_type() == torch::kDouble);
}

TEST_CASE("a gated layer gets no second gate, blurred in between or not",
          "[surgery][squeeze_excite][law]") {
  const SqueezeExcite options{
      .latent_channels = 2, .min_channels = 4, .if_none = surgery::IfNone::ignore};
  NetImpl net;
  CHECK(apply_squeeze_excite(net, options).count() == 2);
  tutti::functional::apply_blurpool(net, {.min_channels = 1});
  CHECK(net.named_parameters().contains("wide.conv.conv.weight"));
  const auto keys = golden::state_keys(net);
  CHECK(apply_squeeze_excite(net, options).count() == 0);
  CHECK(golden::state_keys(net) == keys);
  const at::Tensor x = torch::randn({1, 4, 8, 8});
  CHECK(net.forward(x).sizes() == at::IntArrayRef{1, 16, 4, 4});
}

TEST_CASE("SqueezeExcite refuses options that cannot be meant and a model without wide layers",
          "[squeeze_excite]") {
  NetImpl net;
  CHECK_THROWS_WITH(apply_squeeze_excite(net, {.latent_channels = 0}),
                    ContainsSubstring("SqueezeExcite: latent_channels is 0, expected more than 0"));
  CHECK_THROWS_AS(apply_squeeze_excite(net, {.min_channels = 0}), c10::ValueError);
  CHECK_THROWS_WITH(apply_squeeze_excite(net),
                    ContainsSubstring("it passed over narrow, wide (channels in or out below "
                                      "min_channels, which is 128)."));
  const auto keys = golden::state_keys(net);
  CHECK_THROWS_AS(apply_squeeze_excite(net, {.latent_channels = 0.1, .min_channels = 4}),
                  c10::ValueError);  // 0.1 * 8 is no channel
  CHECK(golden::state_keys(net) == keys);
}

TEST_CASE("SqueezeExcite changes the model at Init and logs how many layers are gated",
          "[squeeze_excite]") {
  tutti::State state;
  state.model = std::make_shared<NetImpl>();
  Hyperparameters seen(state);
  SqueezeExcite{.latent_channels = 4, .min_channels = 4}.apply(tutti::Init{}, state);
  CHECK(seen.counts == Hyperparameters::Counts{{"squeeze_excite/num_squeeze_excite_layers", 2}});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
