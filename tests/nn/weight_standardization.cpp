#include <tutti/nn/weight_standardization.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::functional::standardize_weights;
using tutti::nn::WeightStandardizedConv2d;

TEST_CASE("standardized weights have mean 0 and variance 1 per output channel", "[nn][law]") {
  const at::Tensor w = torch::randn({4, 3, 5, 5}, at::kDouble) * 3 + 1;
  const at::Tensor y = standardize_weights(w).flatten(1);
  CHECK(y.mean(1).abs().max().item<double>() < 1e-12);
  CHECK((y.var(1, /*unbiased=*/false) - 1).abs().max().item<double>() < 1e-9);
  const at::Tensor last = w.contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(standardize_weights(last).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("a convolution computes with standardized weights and trains its own", "[nn][law]") {
  const torch::nn::Conv2dImpl plain(torch::nn::Conv2dOptions(3, 4, 3).padding(1));
  WeightStandardizedConv2d layer(plain);
  CHECK(layer.original().is_same(plain.weight));
  CHECK(layer.named_parameters().contains("parametrizations.weight.original"));
  const at::Tensor x = torch::randn({2, 3, 6, 6});
  const at::Tensor y = layer.forward(x);
  CHECK(y.allclose(torch::conv2d(x, standardize_weights(plain.weight), plain.bias, 1, 1), 1e-5,
                   1e-5));
  y.square().sum().backward();
  CHECK(plain.weight.grad().defined());
  CHECK(plain.weight.grad().flatten(1).sum(1).abs().max().item<double>() < 1e-2);  // shifts: no use
}

}  // namespace UNITY_BUILD_UNIQUE_ID
