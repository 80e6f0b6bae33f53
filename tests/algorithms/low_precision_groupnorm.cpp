#include <tutti/algorithms/low_precision_groupnorm.hpp>

#include "support/catch.hpp"

#include <memory>
#include <tuple>
#include <type_traits>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/nn/conv.hpp>
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
using tutti::LowPrecisionGroupNorm;
using tutti::Precision;
using tutti::functional::apply_low_precision_groupnorm;
using Options = torch::nn::GroupNormOptions;

static_assert(tutti::Algorithm<LowPrecisionGroupNorm>);
static_assert(sizeof(tutti::With<LowPrecisionGroupNorm{.apply_at = ApplyAt::before_load}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<tutti::ChannelsLast, LowPrecisionGroupNorm,
                                           tutti::LowPrecisionLayerNorm>::order<tutti::Init>,
                             tutti::types<LowPrecisionGroupNorm, tutti::LowPrecisionLayerNorm,
                                          tutti::ChannelsLast>>);

}  // namespace

TEST_CASE("a low-precision GroupNorm gives the autocast type of its input's device",
          "[nn][low_precision_groupnorm]") {
  for (const bool affine : {true, false}) {
    nn::Sequential net(nn::Conv2d(3, 8, 1), nn::GroupNorm(Options(2, 8).affine(affine).eps(1e-3)),
                       torch::nn::GroupNorm(Options(4, 8).affine(affine)));
    const at::Tensor x = torch::randn({3, 3, 5, 5});
    const at::Tensor exact = net->forward(x);
    const auto keys = golden::state_keys(*net);
    CHECK(apply_low_precision_groupnorm(*net, Precision::amp_bf16).count() == 2);
    CHECK(golden::state_keys(*net) == keys);
    CHECK(net->forward(x).equal(exact));
    const auto low = std::dynamic_pointer_cast<nn::LowPrecisionGroupNormImpl>(net->children()[1]);
    REQUIRE(low != nullptr);
    CHECK(low->options.num_groups() == 2);
    CHECK(low->options.num_channels() == 8);
    CHECK(low->options.eps() == 1e-3);
    const Autocast on(at::kCPU, at::kBFloat16);
    const at::Tensor y = net->forward(x);
    CHECK(y.scalar_type() == at::kBFloat16);
    CHECK(y.to(at::kFloat).allclose(exact, 5e-2, 5e-2));
  }
}

TEST_CASE("LowPrecisionGroupNorm keeps tensors and changes nothing twice",
          "[surgery][low_precision_groupnorm][law]") {
  nn::Sequential net(nn::GroupNorm(Options(2, 4)));
  net->to(at::kBFloat16);
  const auto before = net->parameters();
  torch::optim::SGD optimizer(before, torch::optim::SGDOptions(0.1));
  apply_low_precision_groupnorm(*net, Precision::amp_fp16, optimizer);
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(net->parameters()[i].is_same(before[i]));
    CHECK(optimizer.param_groups()[0].params()[i].is_same(before[i]));
  }
  CHECK(net->parameters()[0].scalar_type() == at::kBFloat16);
  CHECK(apply_low_precision_groupnorm(*net, Precision::amp_fp16).count() == 0);
  CHECK_THROWS_WITH(
      apply_low_precision_groupnorm(*net, Precision::amp_bf16, {}, surgery::IfNone::error),
      ContainsSubstring(
          "LowPrecisionGroupNorm: no torch::nn::GroupNorm was replaced: it passed over ") &&
          ContainsSubstring("(in low precision already)"));
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
  CHECK(surgery::count<nn::LowPrecisionGroupNorm>(*copy) == 1);
}

TEST_CASE("LowPrecisionGroupNorm acts at one event, and not in fp32", "[low_precision_groupnorm]") {
  tutti::State state;
  nn::Sequential net(nn::GroupNorm(Options(2, 4)));
  state.model = net.ptr();
  const LowPrecisionGroupNorm policy{.apply_at = ApplyAt::after_load};
  const auto events = [&](ApplyAt when) {
    const LowPrecisionGroupNorm one{.apply_at = when};
    one.validate();
    return std::tuple(one.match(tutti::Init{}, state), one.match(tutti::BeforeLoad{}, state),
                      one.match(tutti::AfterLoad{}, state));
  };
  CHECK(events(ApplyAt::init) == std::tuple(true, false, false));
  CHECK(events(ApplyAt::before_load) == std::tuple(false, true, false));
  CHECK(events(ApplyAt::after_load) == std::tuple(false, false, true));
  CHECK_THROWS_AS(LowPrecisionGroupNorm{.apply_at = static_cast<ApplyAt>(3)}.validate(),
                  c10::ValueError);
  Warnings warnings;
  policy.apply(tutti::AfterLoad{}, state);
  CHECK(warnings.texts.size() == 1);
  CHECK(surgery::count<nn::LowPrecisionGroupNorm>(*net) == 0);
  state.precision = Precision::amp_bf16;
  policy.apply(tutti::AfterLoad{}, state);
  CHECK(surgery::count<nn::LowPrecisionGroupNorm>(*net) == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
