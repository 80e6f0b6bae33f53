#include <tutti/nn/transposed_linear.hpp>

#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::nn::TransposedLinear;

TEST_CASE("a transposed linear layer is a linear layer whose weight lies the other way round",
          "[nn][law]") {
  TransposedLinear ours(3, 5);
  torch::nn::Linear plain(3, 5);
  CHECK(ours->weight.sizes() == at::IntArrayRef{3, 5});
  CHECK(ours->bias.eq(0).all().item<bool>());
  const torch::NoGradGuard no_grad;
  plain->weight.copy_(ours->weight.t());
  plain->bias.copy_(ours->bias.fill_(0.5));
  const at::Tensor x = torch::randn({2, 4, 3});
  CHECK(ours(x).allclose(plain(x)));
}

TEST_CASE("surgery can stand in for a transposed linear layer", "[nn][surgery]") {
  TransposedLinear layer(3, 5);
  layer->slot() = tutti::nn::Slot(std::make_shared<torch::nn::LinearImpl>(3, 7));
  CHECK(layer(torch::ones({2, 3})).size(1) == 7);
  layer->slot() = {};
  CHECK(layer(torch::ones({2, 3})).size(1) == 5);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
