#include <tutti/nn/dropout.hpp>

#include "nn/replaceable.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <type_traits>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using replaceable::check_is_the_plain_layer;

static_assert(std::is_same_v<nn::Dropout::Impl, nn::Replaceable<torch::nn::DropoutImpl>>);

}  // namespace

TEST_CASE("dropout is torch::nn's until something stands in", "[nn][slot][law]") {
  check_is_the_plain_layer(nn::Dropout(0.4), torch::randn({2, 3}));
  check_is_the_plain_layer(nn::Dropout(), torch::randn({2, 3}));
}

TEST_CASE("dropout draws the numbers that torch::nn's draws", "[nn][law]") {
  const at::Tensor x = torch::randn({8, 3, 5});
  nn::Dropout ours(0.4);
  torch::nn::Dropout plain(0.4);
  at::manual_seed(3);
  const at::Tensor got = ours(x);
  at::manual_seed(3);
  CHECK(got.equal(plain(x)));
  CHECK(got.sizes() == x.sizes());
  CHECK(nn::Dropout()->options.p() == 0.5);
}

TEST_CASE("what dropout keeps in training is scaled up, the rest is zero", "[nn][law]") {
  at::manual_seed(1);
  const at::Tensor y = nn::Dropout(0.25)(torch::ones({10000}));
  const at::Tensor kept = y.ne(0);
  CHECK(y.masked_select(kept).allclose(torch::full({1}, 1 / 0.75)));
  // Three standard deviations of 10000 draws are 0.013.
  CHECK(std::abs(kept.to(torch::kDouble).mean().item<double>() - 0.75) < 0.02);
  const at::Tensor x = torch::randn({4, 4});
  CHECK(nn::Dropout(0.)(x).equal(x));
  CHECK(nn::Dropout(1.)(x).equal(torch::zeros({4, 4})));
  CHECK(nn::Dropout(0.5)(torch::empty({0, 4})).sizes() == torch::IntArrayRef{0, 4});
}

TEST_CASE("a probability outside [0, 1] is refused when the layer is made", "[nn]") {
  CHECK_THROWS_WITH(nn::Dropout(-0.1), ContainsSubstring("between 0 and 1"));
  CHECK_THROWS_WITH(nn::Dropout(1.1), ContainsSubstring("between 0 and 1"));
}

TEST_CASE("what stands in for dropout gets the whole input in training", "[nn][slot]") {
  nn::Dropout layer(0.9);
  layer->slot() = nn::Slot(std::make_shared<replaceable::DoubleImpl>());
  REQUIRE(layer->is_training());
  const at::Tensor x = torch::randn({4, 4});
  CHECK(layer(x).equal(x * 2));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
