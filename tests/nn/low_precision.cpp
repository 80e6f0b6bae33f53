#include <tutti/nn/low_precision.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Autocast;
using tutti::nn::LowPrecisionGroupNorm;
using tutti::nn::LowPrecisionLayerNorm;

TEST_CASE("normalisations compute in the autocast type where there is one", "[nn][amp]") {
  LowPrecisionLayerNorm layer(torch::nn::LayerNormOptions({6}));
  LowPrecisionGroupNorm group(torch::nn::GroupNormOptions(2, 6));
  torch::nn::LayerNorm plain(torch::nn::LayerNormOptions({6}));
  const at::Tensor x = torch::randn({4, 6});
  const at::Tensor image = torch::randn({2, 6, 3, 3});
  CHECK(layer(x).equal(plain(x)));
  const Autocast autocast(at::kCPU, at::kBFloat16);
  CHECK(plain(x).scalar_type() == at::kFloat);  // what autocast does with the plain layer
  CHECK(layer(x).scalar_type() == at::kBFloat16);
  CHECK(group(image).scalar_type() == at::kBFloat16);
  CHECK(layer(x).to(at::kFloat).allclose(plain(x), 2e-2, 2e-2));
}

TEST_CASE("a low-precision RMSNorm runs in the autocast type", "[nn]") {
  torch::manual_seed(3);
  tutti::nn::RMSNorm plain(8);
  tutti::nn::LowPrecisionRMSNormImpl low(*plain);
  const at::Tensor x = torch::randn({4, 8});
  CHECK(low.forward(x).equal(plain(x)));
  const tutti::Autocast autocast(at::kCPU, at::kBFloat16);
  CHECK(plain(x).scalar_type() == at::kFloat);
  const at::Tensor y = low.forward(x);
  CHECK(y.scalar_type() == at::kBFloat16);
  CHECK(y.to(at::kFloat).allclose(plain(x), 2e-2, 2e-2));
  CHECK(low.weight.is_same(plain->weight));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
