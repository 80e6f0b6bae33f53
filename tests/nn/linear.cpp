#include <tutti/nn/linear.hpp>

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

static_assert(std::is_same_v<nn::Linear::Impl, nn::Replaceable<torch::nn::LinearImpl>>);

}  // namespace

TEST_CASE("the linear layer is torch::nn's until something stands in", "[nn][slot][law]") {
  check_is_the_plain_layer(nn::Linear(5, 3), torch::randn({2, 5}));
  check_is_the_plain_layer(nn::Linear(torch::nn::LinearOptions(5, 3).bias(false)),
                           torch::randn({2, 5}));
  check_is_the_plain_layer(nn::Linear(5, 3), torch::randn({5}));
}

TEST_CASE("a linear layer works along the last dimension, whatever lies before it", "[nn][law]") {
  nn::Linear layer(5, 3);
  CHECK(layer->named_parameters().keys() == std::vector<std::string>{"weight", "bias"});
  const at::Tensor x = torch::randn({2, 4, 6, 5});
  const at::Tensor y = layer(x);
  CHECK(y.sizes() == std::vector<std::int64_t>{2, 4, 6, 3});
  CHECK(y.allclose(x.matmul(layer->weight.t()) + layer->bias, 1e-5, 1e-6));
  CHECK(layer(torch::randn({0, 5})).sizes() == std::vector<std::int64_t>{0, 3});
  CHECK_THROWS_AS(layer(torch::randn({5, 4})), c10::Error);

  nn::Linear plain(torch::nn::LinearOptions(5, 3).bias(false));
  CHECK(plain->named_parameters().keys() == std::vector<std::string>{"weight"});
  CHECK(plain(torch::zeros({1, 5})).equal(torch::zeros({1, 3})));
}

TEST_CASE("a copy of a linear layer has tensors of its own, of the same type", "[nn]") {
  nn::Linear layer(5, 3);
  layer->to(torch::kDouble);
  const auto copy = std::dynamic_pointer_cast<nn::LinearImpl>(layer->clone());
  REQUIRE(copy != nullptr);
  CHECK_FALSE(copy->weight.is_same(layer->weight));
  CHECK(copy->weight.equal(layer->weight));
  CHECK(copy->weight.scalar_type() == torch::kDouble);
  CHECK(copy->bias.equal(layer->bias));
  CHECK(copy->parameters()[0].is_same(copy->weight));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
