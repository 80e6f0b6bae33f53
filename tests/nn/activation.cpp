#include <tutti/nn/activation.hpp>

#include <cmath>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::nn::activate;
using tutti::nn::Activation;

static_assert(tutti::nn::to_string(Activation::gelu_new) == "gelu_new");

TEST_CASE("activations are what their formulas say", "[nn][law]") {
  const at::Tensor x = torch::linspace(-4, 4, 33, at::kDouble);
  const at::Tensor phi = (1 + torch::erf(x / std::sqrt(2.0))) / 2;
  CHECK(activate(Activation::gelu, x).allclose(x * phi, 1e-12, 1e-12));
  const double root = std::sqrt(2 / 3.14159265358979323846);
  const at::Tensor by_tanh = x / 2 * (1 + torch::tanh(root * (x + 0.044715 * x.pow(3))));
  CHECK(activate(Activation::gelu_new, x).allclose(by_tanh, 1e-12, 1e-12));
  CHECK(activate(Activation::relu, x).equal(x.clamp_min(0)));
  CHECK(activate(Activation::silu, x).allclose(x / (1 + torch::exp(-x)), 1e-12, 1e-12));
}

TEST_CASE("a nonlinearity is found by the names of Hugging Face", "[nn]") {
  using tutti::nn::Activation;
  using tutti::nn::activation_named;
  STATIC_REQUIRE(activation_named("gelu") == Activation::gelu);
  STATIC_REQUIRE(activation_named("gelu_python") == Activation::gelu);
  STATIC_REQUIRE(activation_named("gelu_pytorch_tanh") == Activation::gelu_new);
  STATIC_REQUIRE(activation_named("gelu_accurate") == Activation::gelu_new);
  STATIC_REQUIRE(activation_named("swish") == Activation::silu);
  STATIC_REQUIRE(activation_named("relu") == Activation::relu);
  STATIC_REQUIRE(!activation_named("mish"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
