#include <tutti/nn/activation.hpp>

#include <cmath>
#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::nn::activate;
using tutti::nn::Activation;

static_assert(tutti::nn::to_string(Activation::gelu_new) == "gelu_new");

TEST_CASE("activations are what their formulas say", "[nn][law]") {
  const at::Tensor x = torch::linspace(-4, 4, 33, at::kDouble);
  const auto phi_of = [](const at::Tensor& z) { return (1 + torch::erf(z / std::sqrt(2.0))) / 2; };
  const at::Tensor phi = phi_of(x);
  CHECK(activate(Activation::gelu, x).allclose(x * phi, 1e-12, 1e-12));
  const double root = std::sqrt(2 / 3.14159265358979323846);
  const at::Tensor by_tanh = x / 2 * (1 + torch::tanh(root * (x + 0.044715 * x.pow(3))));
  CHECK(activate(Activation::gelu_new, x).allclose(by_tanh, 1e-12, 1e-12));
  CHECK(activate(Activation::relu, x).equal(x.clamp_min(0)));
  CHECK(activate(Activation::silu, x).allclose(x / (1 + torch::exp(-x)), 1e-12, 1e-12));
  CHECK(activate(Activation::quick_gelu, x).allclose(x / (1 + torch::exp(-1.702 * x)), 1e-12));
  CHECK(activate(Activation::gelu_10, 4 * x).allclose((4 * x * phi_of(4 * x)).clamp(-10, 10)));
  CHECK(activate(Activation::relu2, x).equal(x.clamp_min(0) * x.clamp_min(0)));
  CHECK(activate(Activation::relu6, 2 * x).equal((2 * x).clamp(0, 6)));
  CHECK(activate(Activation::leaky_relu, x).equal(torch::where(x > 0, x, 0.01 * x)));
  CHECK(activate(Activation::hardswish, x).allclose(x * (x + 3).clamp(0, 6) / 6, 1e-12, 1e-12));
  CHECK(
      activate(Activation::mish, x).allclose(x * torch::tanh(torch::log1p(torch::exp(x))), 1e-12));
  CHECK(activate(Activation::tanh, x).equal(torch::tanh(x)));
  CHECK(activate(Activation::sigmoid, x).allclose(1 / (1 + torch::exp(-x)), 1e-12));
  CHECK(activate(Activation::linear, x).equal(x));
  const at::Tensor laplace = activate(Activation::laplace, x);
  CHECK(laplace.allclose(phi_of((x - std::sqrt(0.5)) / std::sqrt(1 / (4 * 3.14159265358979323846))),
                         1e-5, 1e-6));
}

TEST_CASE("every nonlinearity is found again by its name, and has a gradient", "[nn]") {
  const std::string names = tutti::nn::activation_names();
  for (int i = 0; i <= static_cast<int>(Activation::linear); ++i) {
    const auto one = static_cast<Activation>(i);
    INFO(tutti::nn::to_string(one));
    CHECK(tutti::nn::activation_named(tutti::nn::to_string(one)) == one);
    CHECK(names.find('"' + std::string(tutti::nn::to_string(one)) + '"') != std::string::npos);
    at::Tensor x = torch::linspace(0.5, 2, 4).requires_grad_();
    activate(one, x).sum().backward();
    CHECK((x.grad() != 0).all().item<bool>());
  }
  CHECK_THROWS_WITH(activate(static_cast<Activation>(99), torch::ones(1)),
                    Catch::Matchers::ContainsSubstring("unknown activation"));
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
  STATIC_REQUIRE(activation_named("mish") == Activation::mish);
  STATIC_REQUIRE(!activation_named("prelu"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
