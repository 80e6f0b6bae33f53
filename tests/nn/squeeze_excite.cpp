#include <tutti/nn/squeeze_excite.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::nn::ChannelMeans;
using tutti::nn::SqueezeExcite2d;
using tutti::nn::SqueezeExcite2dImpl;
using tutti::nn::SqueezeExciteConv2d;

TEST_CASE("a gate scales each channel by what the formula says", "[nn][law]") {
  SqueezeExcite2d gate(8, 0.25);
  const at::Tensor x = torch::randn({2, 8, 3, 5});
  const auto parameters = gate->named_parameters();
  const at::Tensor w1 = parameters["pool_and_mlp.2.weight"];
  const at::Tensor w2 = parameters["pool_and_mlp.4.weight"];
  CHECK(w1.sizes() == at::IntArrayRef{2, 8});
  const at::Tensor scale = x.mean({2, 3}).matmul(w1.t()).relu().matmul(w2.t()).sigmoid();
  CHECK(gate(x).allclose(x * scale.view({2, 8, 1, 1}), 1e-5, 1e-6));
  CHECK(gate(x.slice(0, 0, 0)).sizes() == at::IntArrayRef{0, 8, 3, 5});  // no images
}

TEST_CASE("the means of channels are right where their sums exceed half precision", "[nn]") {
  const at::Tensor wide = torch::randn({2, 3, 4, 7});
  CHECK(ChannelMeans()(wide).allclose(wide.mean({2, 3}), 1e-5, 1e-6));
  const at::Tensor x = torch::full({1, 2, 64, 64}, 40, at::kHalf);  // 163840 in all
  CHECK(ChannelMeans()(x).equal(torch::full({1, 2}, 40, at::kHalf)));
}

TEST_CASE("the inner width is a number or a fraction of the channels", "[nn]") {
  CHECK(SqueezeExcite2dImpl::width(0.125, 64) == 8);
  CHECK(SqueezeExcite2dImpl::width(0.3, 10) == 3);
  CHECK(SqueezeExcite2dImpl::width(16, 64) == 16);
  CHECK_THROWS_WITH(SqueezeExcite2dImpl::width(0.125, 4),
                    ContainsSubstring("0.125 of 4 channels are less than 1"));
}

TEST_CASE("a gated convolution keeps the tensors of the one it stands for", "[nn]") {
  const torch::nn::Conv2dImpl plain(torch::nn::Conv2dOptions(3, 16, 3).stride(2).padding(1));
  SqueezeExciteConv2d gated(plain);
  CHECK(gated->conv->weight.is_same(plain.weight));
  CHECK(gated(torch::randn({2, 3, 8, 8})).sizes() == at::IntArrayRef{2, 16, 4, 4});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
