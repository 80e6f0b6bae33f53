#include <tutti/nn/factorized.hpp>

#include "support/catch.hpp"

#include "nn/golden_model.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using torch::nn::Conv2dOptions;
using torch::nn::LinearOptions;

// A layer whose weight has that rank.
template <class Layer>
Layer of_rank(Layer layer, std::int64_t rank) {
  const torch::NoGradGuard no_grad;
  const at::Tensor w = layer->weight.flatten(1);
  layer->weight.copy_(torch::randn({w.size(0), rank})
                          .matmul(torch::randn({rank, w.size(1)}))
                          .view(layer->weight.sizes()));
  return layer;
}

}  // namespace

TEST_CASE("a factored layer computes what a layer of that rank computed", "[nn][factorize][law]") {
  at::manual_seed(1);
  nn::Linear linear = of_rank(nn::Linear(LinearOptions(20, 16)), 4);
  nn::FactorizedLinear two(*linear, 4);
  const at::Tensor x = torch::randn({3, 5, 20});
  CHECK(two.forward(x).allclose(linear(x), 1e-4, 1e-4));
  CHECK(golden::state_keys(two) ==
        std::vector<std::string>{"module0.weight", "module1.weight", "module1.bias"});

  nn::Conv2d conv = of_rank(nn::Conv2d(Conv2dOptions(8, 10, 3)
                                           .stride({2, 1})
                                           .padding(1)
                                           .padding_mode(torch::kCircular)
                                           .bias(false)),
                            3);
  nn::FactorizedConv2d thin(*conv, 3);
  const at::Tensor image = torch::randn({2, 8, 7, 6});
  CHECK(thin.forward(image).allclose(conv(image), 1e-4, 1e-4));
  CHECK(golden::state_keys(thin) == std::vector<std::string>{"module0.weight", "module1.weight"});
  CHECK(nn::FactorizedConv2d(*conv, 3, /*add_bias=*/true).parameters().size() == 3);
}

TEST_CASE("a rank that saves no work and groups are refused", "[nn][factorize]") {
  CHECK_THROWS_WITH(nn::FactorizedLinear(LinearOptions(8, 8), 4),
                    ContainsSubstring("latent 4 means 4 between layers, expected 3 at most"));
  CHECK_THROWS_AS(nn::FactorizedLinear(LinearOptions(7, 5), 3), c10::ValueError);
  CHECK_THROWS_AS(nn::FactorizedLinear(LinearOptions(10, 10), 0.5), c10::ValueError);
  CHECK_THROWS_AS(nn::FactorizedConv2d(Conv2dOptions(8, 8, 3).groups(2)), c10::NotImplementedError);
}

TEST_CASE("set_rank lowers the rank such that outputs change least", "[nn][factorize]") {
  at::manual_seed(4);
  nn::FactorizedLinear linear(LinearOptions(32, 24).bias(false), 10);
  const at::Tensor x = torch::randn({64, 32});
  const at::Tensor y = linear.forward(x);
  for (const std::int64_t rank : {6, 2}) {
    linear.set_rank(x, rank);
    CHECK(linear.rank() == rank);
    CHECK(linear.forward(x).sizes() == y.sizes());
    CHECK(linear.parameters().size() == 2);
    CHECK((linear.forward(x) - y).square().mean().item<double>() < y.var().item<double>());
  }
  CHECK_THROWS_AS(linear.set_rank(x, 3), c10::ValueError);
  linear.set_rank(x, 2);

  nn::FactorizedConv2d conv(Conv2dOptions(6, 8, 3).padding(1), 4);
  const at::Tensor image = torch::randn({2, 6, 5, 5});
  const at::Tensor before = conv.forward(image);
  conv.set_rank(image, 2);
  CHECK(conv.rank() == 2);
  CHECK(conv.forward(image).sizes() == before.sizes());
  CHECK((conv.forward(image) - before).square().mean().item<double>() <
        before.var().item<double>());

  for (const auto& options : {Conv2dOptions(6, 8, 3).padding(torch::kSame),
                              Conv2dOptions(6, 8, 3).padding(1).padding_mode(torch::kCircular)}) {
    nn::FactorizedConv2d padded(options, 4);
    CHECK_THROWS_WITH(padded.set_rank(image, 2),
                      ContainsSubstring("pads in another way than with a number of zeros"));
  }
}

TEST_CASE("a factored layer is of the dtype of the layer that it is made of",
          "[nn][factorize][law]") {
  at::manual_seed(5);
  nn::Linear wide = of_rank(nn::Linear(LinearOptions(20, 16)), 4);
  wide->to(torch::kDouble);
  {
    const torch::NoGradGuard no_grad;
    wide->weight.copy_(
        torch::randn({16, 4}, torch::kDouble).matmul(torch::randn({4, 20}, torch::kDouble)));
  }
  nn::FactorizedLinear two(*wide, 4);
  const at::Tensor x = torch::randn({3, 20}, torch::kDouble);
  CHECK(two.forward(x).allclose(wide(x), 1e-10, 1e-10));
}

TEST_CASE("a layer of zeros gives zeros when it is factored, and learns", "[nn][factorize][law]") {
  const torch::nn::LinearImpl plain(LinearOptions(20, 16));
  {
    const torch::NoGradGuard no_grad;
    at::Tensor(plain.weight).zero_();
  }
  nn::FactorizedLinear two(plain, 4);
  const at::Tensor x = torch::randn({3, 20});
  CHECK(two.forward(x).equal(plain.bias.expand({3, 16})));
  two.forward(x).square().sum().backward();
  const torch::NoGradGuard no_grad;
  two.module1->weight.sub_(two.module1->weight.grad(), 0.1);
  CHECK_FALSE(two.forward(x).equal(plain.bias.expand({3, 16})));
}

TEST_CASE("set_rank lowers the rank of layers in half precision too", "[nn][factorize]") {
  at::manual_seed(4);
  nn::FactorizedLinear linear(LinearOptions(32, 24), 10);
  linear.to(torch::kBFloat16);
  const at::Tensor x = torch::randn({64, 32}, torch::kBFloat16);
  const at::Tensor y = linear.forward(x);
  linear.set_rank(x, 6);
  CHECK(linear.rank() == 6);
  CHECK(linear.module0->weight.scalar_type() == torch::kBFloat16);
  CHECK((linear.forward(x) - y).square().mean().item<double>() < y.var().item<double>() / 2);

  nn::FactorizedConv2d conv(Conv2dOptions(6, 8, 3).padding(1), 4);
  conv.to(torch::kBFloat16);
  const at::Tensor image = torch::randn({2, 6, 5, 5}, torch::kBFloat16);
  const at::Tensor before = conv.forward(image);
  conv.set_rank(image, 3);
  CHECK((conv.forward(image) - before).square().mean().item<double>() <
        before.var().item<double>() / 2);
}

TEST_CASE("new factors are frozen, and in the mode, as the ones before them", "[nn][factorize]") {
  nn::FactorizedLinear linear(LinearOptions(20, 16), 4);
  linear.module0->weight.set_requires_grad(false);
  linear.module1->bias.set_requires_grad(false);
  linear.eval();
  linear.set_factors(linear.truncated(1e-9));
  CHECK_FALSE(linear.module0->weight.requires_grad());
  CHECK(linear.module1->weight.requires_grad());
  CHECK_FALSE(linear.module1->bias.requires_grad());
  CHECK_FALSE(linear.module1->is_training());
  nn::FactorizedLinear other(LinearOptions(20, 16), 4);
  other.module1->weight.set_requires_grad(false);
  other.set_factors(other.truncated(1e-9));
  CHECK(other.module0->weight.requires_grad());
  CHECK_FALSE(other.module1->weight.requires_grad());
  CHECK(other.module1->bias.requires_grad());
  CHECK(other.module1->is_training());
}

TEST_CASE("truncated factors have the least rank with that energy", "[nn][factorize][law]") {
  nn::Linear plain(LinearOptions(20, 16));
  {
    const torch::NoGradGuard no_grad;
    plain->weight.zero_();
    plain->weight.diagonal().slice(0, 0, 3).copy_(torch::tensor({2.0F, 3.0F, 1.0F}));
  }
  const nn::FactorizedLinear three(*plain);
  CHECK(three.rank() == 4);  // a quarter of 16
  for (const auto& [energy, rank] : {std::pair{0.64, 1}, {0.65, 2}, {0.92, 2}, {0.93, 3}}) {
    CHECK(three.truncated(energy).a.size(0) == rank);  // of 9 + 4 + 1
  }
  at::manual_seed(6);
  nn::FactorizedLinear linear(*of_rank(nn::Linear(LinearOptions(20, 16)), 3), 7);
  const auto less = linear.truncated(1 - 1e-6);
  CHECK(less.a.size(0) == 3);
  const auto all = linear.factors();
  CHECK(less.b.matmul(less.a).allclose(all.b.matmul(all.a), 1e-3, 1e-3));
  linear.set_factors(less);
  CHECK(linear.rank() == 3);
  CHECK(linear.is_intact());
  linear.module1->slot() = nn::Slot(std::make_shared<nn::LinearImpl>(3, 16));
  CHECK_FALSE(linear.is_intact());
  linear.module1->slot() = {};
  CHECK(linear.truncated(1e-9).a.size(0) == 1);
  linear.to(torch::kBFloat16);
  linear.set_factors(linear.truncated(1e-9));
  CHECK(linear.forward(torch::ones({2, 20}, torch::kBFloat16)).scalar_type() == torch::kBFloat16);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
