#include <tutti/algorithms/low_precision_layernorm.hpp>

#include "support/catch.hpp"

#include <memory>
#include <type_traits>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

#include "nn/golden_model.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using tutti::ApplyAt;
using tutti::Autocast;
using tutti::LowPrecisionLayerNorm;
using tutti::Precision;
using tutti::functional::apply_low_precision_layernorm;

static_assert(tutti::Algorithm<LowPrecisionLayerNorm>);
static_assert(sizeof(tutti::With<LowPrecisionLayerNorm{.apply_at = ApplyAt::after_load}>) > 0);

// Makes layer norms, as GatedLinearUnits does.
struct Adder final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::changes_model>}};
  void apply(tutti::Init, tutti::State&) const {}
};
static_assert(
    std::is_same_v<tutti::Recipe<tutti::EMA, LowPrecisionLayerNorm, tutti::ChannelsLast,
                                 Adder>::order<tutti::Init>,
                   tutti::types<Adder, LowPrecisionLayerNorm, tutti::ChannelsLast, tutti::EMA>>);

}  // namespace

TEST_CASE("a low-precision LayerNorm gives the autocast type of its input's device",
          "[nn][low_precision_layernorm]") {
  nn::Sequential net(nn::LayerNorm(torch::nn::LayerNormOptions({6, 7})));
  nn::LayerNorm plain(std::dynamic_pointer_cast<nn::LayerNormImpl>(net->children()[0]));
  const auto keys = golden::state_keys(*net);
  const at::Tensor weight = plain->weight;
  const at::Tensor x = torch::randn({3, 6, 7});
  const at::Tensor exact = plain(x);
  CHECK(apply_low_precision_layernorm(*net, Precision::amp_bf16).count() == 1);
  CHECK(golden::state_keys(*net) == keys);
  CHECK(net->parameters()[0].is_same(weight));
  CHECK(net->forward(x).equal(exact));
  {
    const Autocast low(at::kCPU, at::kBFloat16);
    const at::Tensor y = net->forward(x);
    CHECK(y.scalar_type() == at::kBFloat16);
    CHECK(y.to(at::kFloat).allclose(exact, 2e-2, 2e-2));
    CHECK(at::autocast::is_autocast_enabled(at::kCPU));
    CHECK(plain(x).scalar_type() == at::kBFloat16);  // through its slot
  }
  net->forward(x).sum().backward();
  CHECK(weight.grad().defined());
}

TEST_CASE("a LayerNorm without weight or bias stays without", "[nn][low_precision_layernorm]") {
  for (const bool affine : {true, false}) {
    nn::LayerNorm norm(torch::nn::LayerNormOptions({8}).elementwise_affine(affine));
    norm->bias.reset();
    nn::LowPrecisionLayerNormImpl low(*norm);
    CHECK(low.weight.defined() == affine);
    CHECK_FALSE(low.bias.defined());
    const Autocast on(at::kCPU, at::kBFloat16);
    CHECK(low.forward(torch::randn({2, 8})).scalar_type() == at::kBFloat16);
  }
}

TEST_CASE("LowPrecisionLayerNorm keeps tensors, their dtype, requires_grad and optimizer state",
          "[surgery][low_precision_layernorm][law]") {
  nn::Sequential net(nn::Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  net->to(at::kBFloat16);
  net->parameters()[2].set_requires_grad(false);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  net->forward(torch::randn({2, 4}, at::kBFloat16)).sum().backward();
  optimizer.step();
  const auto state = optimizer.state().size();
  const auto before = net->parameters();
  apply_low_precision_layernorm(*net, Precision::amp_bf16, optimizer);
  const auto after = net->parameters();
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(after[i].is_same(before[i]));
    CHECK(optimizer.param_groups()[0].params()[i].is_same(before[i]));
  }
  CHECK(optimizer.state().size() == state);
  CHECK_FALSE(net->parameters()[2].requires_grad());
  CHECK(net->forward(torch::randn({2, 4}, at::kBFloat16)).scalar_type() == at::kBFloat16);

  const auto module = net->children()[1];
  CHECK(apply_low_precision_layernorm(*net, Precision::amp_bf16).count() == 0);
  CHECK(net->children()[1] == module);
  CHECK_THROWS_WITH(
      apply_low_precision_layernorm(*net, Precision::amp_bf16, {}, surgery::IfNone::error),
      ContainsSubstring("LowPrecisionLayerNorm: no torch::nn::LayerNorm"));
}

TEST_CASE("LowPrecisionLayerNorm changes nothing in fp32 and says so",
          "[low_precision_layernorm]") {
  nn::Sequential net(nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  const auto module = net->children()[0];
  Warnings warnings;
  CHECK(apply_low_precision_layernorm(*net, Precision::fp32).count() == 0);
  CHECK(net->children()[0] == module);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("LowPrecisionLayerNorm: the precision is fp32") &&
                                    ContainsSubstring("no effect"));
}

TEST_CASE("LowPrecisionLayerNorm changes the model at the event that apply_at names",
          "[low_precision_layernorm]") {
  tutti::State state;
  nn::Sequential net(nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  state.model = net.ptr();
  state.precision = Precision::amp_bf16;
  const LowPrecisionLayerNorm policy{.apply_at = ApplyAt::before_load};
  CHECK_FALSE(policy.match(tutti::Init{}, state));
  CHECK(policy.match(tutti::BeforeLoad{}, state));
  CHECK_FALSE(policy.match(tutti::AfterLoad{}, state));
  policy.apply(tutti::BeforeLoad{}, state);
  CHECK(surgery::count<nn::LowPrecisionLayerNorm>(*net) == 1);
  CHECK_THROWS_AS(LowPrecisionLayerNorm{.apply_at = static_cast<ApplyAt>(7)}.validate(),
                  c10::ValueError);
}

TEST_CASE("LowPrecisionLayerNorm leaves layers of a derived class alone",
          "[surgery][low_precision_layernorm]") {
  struct Doubled : tutti::nn::Replaceable<torch::nn::LayerNormImpl> {
    using Replaceable::Replaceable;
    at::Tensor compute(const at::Tensor& x) override { return x * 2; }
  };
  torch::nn::Sequential net;
  net->push_back(std::static_pointer_cast<nn::LayerNormImpl>(
      std::make_shared<Doubled>(torch::nn::LayerNormOptions({4}))));
  CHECK(apply_low_precision_layernorm(*net, Precision::amp_bf16).count() == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
