#include <tutti/nn/conv.hpp>

#include "nn/replaceable.hpp"
#include "support/catch.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using replaceable::check_is_the_plain_layer;

static_assert(std::is_same_v<nn::Conv1d::Impl, nn::Replaceable<torch::nn::Conv1dImpl>>);
static_assert(std::is_same_v<nn::Conv2d::Impl, nn::Replaceable<torch::nn::Conv2dImpl>>);
static_assert(std::is_same_v<nn::Conv3d::Impl, nn::Replaceable<torch::nn::Conv3dImpl>>);

// A deep copy is again replaceable, with the options and over tensors of its own.
template <class Holder>
void check_clones(Holder conv, const at::Tensor& x) {
  const auto copy = std::dynamic_pointer_cast<typename Holder::Impl>(conv->clone());
  REQUIRE(copy != nullptr);
  CHECK(copy->forward(x).equal(conv->forward(x)));
  CHECK(copy->options.stride()->at(0) == conv->options.stride()->at(0));
  CHECK_FALSE(copy->weight.is_same(conv->weight));
  copy->slot() = nn::Slot(std::make_shared<replaceable::DoubleImpl>());
  CHECK_FALSE(conv->slot());
}

}  // namespace

TEST_CASE("the convolutions are torch::nn's until something stands in", "[nn][slot][law]") {
  check_is_the_plain_layer(nn::Conv1d(3, 4, 3), torch::randn({2, 3, 8}));
  check_is_the_plain_layer(
      nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2).bias(false)),
      torch::randn({2, 4, 7, 9}));
  check_is_the_plain_layer(
      nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(torch::kSame).dilation(2)),
      torch::randn({1, 2, 6, 6}));
  check_is_the_plain_layer(
      nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(1).padding_mode(torch::kCircular)),
      torch::randn({1, 2, 6, 6}));
  check_is_the_plain_layer(nn::Conv3d(torch::nn::Conv3dOptions(2, 3, {1, 2, 3}).stride({1, 2, 1})),
                           torch::randn({2, 2, 3, 4, 5}));
}

TEST_CASE("convolutions map channels in to channels out, whatever lies behind them", "[nn][law]") {
  using Sizes = std::vector<std::int64_t>;
  CHECK(nn::Conv1d(3, 4, 3)(torch::randn({2, 3, 8})).sizes() == Sizes{2, 4, 6});
  CHECK(nn::Conv2d(3, 4, 3)(torch::randn({2, 3, 8, 5})).sizes() == Sizes{2, 4, 6, 3});
  CHECK(nn::Conv3d(3, 4, 3)(torch::randn({2, 3, 8, 5, 3})).sizes() == Sizes{2, 4, 6, 3, 1});
  CHECK(nn::Conv2d(3, 4, 3)(torch::randn({0, 3, 8, 5})).sizes() == Sizes{0, 4, 6, 3});
  CHECK(nn::Conv2d(3, 4, 3)(torch::randn({3, 8, 5})).sizes() == Sizes{4, 6, 3});  // no batch

  const nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, {3, 5}));
  CHECK(conv->weight.sizes() == Sizes{4, 3, 3, 5});
  CHECK(conv->named_parameters().keys() == std::vector<std::string>{"weight", "bias"});
  CHECK_THROWS_AS(nn::Conv2d(3, 4, 3)(torch::randn({2, 4, 8, 8})), c10::Error);
}

TEST_CASE("a convolution clones deeply and stays replaceable", "[nn]") {
  check_clones(nn::Conv1d(torch::nn::Conv1dOptions(3, 4, 3).stride(2)), torch::randn({2, 3, 9}));
  check_clones(nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).stride(2).bias(false)),
               torch::randn({2, 3, 9, 9}));
  check_clones(nn::Conv3d(torch::nn::Conv3dOptions(1, 2, 2).stride(2)),
               torch::randn({2, 1, 4, 4, 4}));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
