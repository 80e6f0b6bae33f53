#include <tutti/nn/lora.hpp>

#include "support/catch.hpp"

#include <cmath>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
namespace nn = tutti::nn;

namespace {

void randomize(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  for (at::Tensor parameter : module.parameters()) {
    parameter.normal_();
  }
}

/// W' as the paper writes it, from the parameters.
at::Tensor expected(const nn::LoraLayer& layer) {
  const at::Tensor v =
      layer.weight() + layer.lora_options().scaling * layer.factor_b().matmul(layer.factor_a());
  return layer.magnitude().defined()
             ? layer.magnitude().unsqueeze(1) * v / v.norm(2, {1}, /*keepdim=*/true)
             : v;
}

template <class Adapter, class Layer>
void check_layer(Layer layer, const at::Tensor& x, bool use_dora) {
  const at::Tensor before = layer(x);
  Adapter adapter(*layer, {.r = 2, .scaling = 0.5, .use_dora = use_dora});
  CHECK(at::allclose(adapter.forward(x), before, 1e-6, 1e-6));  // it changes nothing at first
  randomize(adapter);
  const at::Tensor weight = expected(adapter);
  const at::Tensor y = adapter.forward(x);
  CHECK_FALSE(at::allclose(y, layer(x), 1e-2, 1e-2));
  if (adapter.is_embedding()) {
    CHECK(at::allclose(y, at::embedding(weight.t(), x), 1e-4, 1e-4));
  } else {
    CHECK(at::allclose(y, at::linear(x, weight, adapter.bias()), 1e-4, 1e-4));
  }
  const at::Tensor kept = adapter.weight().clone();
  adapter.merge();
  CHECK(adapter.is_merged());
  CHECK(at::allclose(adapter.weight(), weight, 1e-5, 1e-5));
  CHECK(at::allclose(layer(x), y, 1e-4, 1e-4));  // the layer has the tensors of the base
  CHECK(at::allclose(adapter.forward(x), y, 1e-4, 1e-4));
  const at::Tensor merged = adapter.weight().clone();
  adapter.merge();
  CHECK(adapter.weight().equal(merged));
  adapter.unmerge();
  CHECK(at::allclose(adapter.weight(), kept, 1e-4, 1e-4));
  adapter.unmerge();
  adapter.merge(/*keep_weight=*/true);
  const at::Tensor again = kept.clone();
  adapter.unmerge();
  CHECK(at::allclose(adapter.weight(), again, 1e-4, 1e-4));
}

}  // namespace

TEST_CASE("an adapter computes base(x) + s B A x, and merging changes nothing of it",
          "[nn][lora][law]") {
  at::manual_seed(1);
  const at::Tensor x = at::randn({3, 5, 6});
  for (const bool use_dora : {false, true}) {
    CAPTURE(use_dora);
    check_layer<nn::LoraLinear>(nn::Linear(6, 4), x, use_dora);
    check_layer<nn::LoraLinear>(nn::Linear(torch::nn::LinearOptions(6, 4).bias(false)), x,
                                use_dora);
    check_layer<nn::LoraTransposedLinear>(nn::TransposedLinear(6, 4), x, use_dora);
    check_layer<nn::LoraEmbeddingImpl>(nn::Embedding(7, 6), torch::tensor({{0, 6, 2}, {2, 2, 1}}),
                                       use_dora);
  }
}

TEST_CASE("a copy of the weight gives every bit of it back", "[nn][lora]") {
  at::manual_seed(2);
  nn::Linear layer(6, 4);
  nn::LoraLinear adapter(*layer, {.r = 3, .scaling = 0.37, .use_dora = true});
  randomize(adapter);
  const at::Tensor before = layer->weight.clone();
  adapter.merge(/*keep_weight=*/true);
  CHECK_FALSE(layer->weight.equal(before));
  adapter.unmerge();
  CHECK(layer->weight.equal(before));
}

TEST_CASE("the lengths of DoRA's rows take no part in the gradient", "[nn][lora]") {
  at::manual_seed(3);
  nn::Linear layer(6, 4);
  nn::LoraLinear adapter(*layer, {.r = 2, .scaling = 2, .use_dora = true});
  randomize(adapter);
  const at::Tensor x = at::randn({5, 6});
  adapter.forward(x).square().sum().backward();
  const at::Tensor a = adapter.factor_a().detach().requires_grad_();
  const at::Tensor b = adapter.factor_b().detach().requires_grad_();
  const at::Tensor m = adapter.magnitude().detach().requires_grad_();
  const at::Tensor v = layer->weight.detach() + 2 * b.matmul(a);
  const at::Tensor w = (m / v.detach().norm(2, 1)).unsqueeze(1) * v;
  at::linear(x, w, layer->bias.detach()).square().sum().backward();
  CHECK(at::allclose(adapter.factor_a().grad(), a.grad(), 1e-4, 1e-4));
  CHECK(at::allclose(adapter.factor_b().grad(), b.grad(), 1e-4, 1e-4));
  CHECK(at::allclose(adapter.magnitude().grad(), m.grad(), 1e-4, 1e-4));
}

TEST_CASE("dropout is of the adapter's input, and only while it trains", "[nn][lora]") {
  at::manual_seed(4);
  for (const bool use_dora : {false, true}) {
    nn::Linear layer(64, 4);
    nn::LoraLinear adapter(*layer, {.r = 2, .scaling = 1, .use_dora = use_dora, .dropout = 0.5});
    const at::Tensor x = at::randn({5, 64});
    CHECK(at::allclose(adapter.forward(x), layer(x), 1e-5, 1e-5));
    randomize(adapter);
    CHECK_FALSE(adapter.forward(x).equal(adapter.forward(x)));
    adapter.eval();
    CHECK(adapter.forward(x).equal(adapter.forward(x)));
    CHECK(at::allclose(adapter.forward(x), at::linear(x, expected(adapter), layer->bias), 1e-4,
                       1e-3));
  }
}

TEST_CASE("factors are fp32 beside half a weight, and double beside a double one", "[nn][lora]") {
  nn::Linear layer(6, 4);
  layer->to(at::kBFloat16);
  nn::LoraLinear adapter(*layer, {.r = 2, .use_dora = true});
  CHECK(adapter.factor_a().scalar_type() == at::kFloat);
  CHECK(adapter.magnitude().scalar_type() == at::kFloat);
  CHECK(adapter.forward(at::randn({2, 6}, at::kBFloat16)).scalar_type() == at::kBFloat16);
  adapter.merge();
  CHECK(layer->weight.scalar_type() == at::kBFloat16);
  nn::Embedding table(7, 6);
  table->to(at::kDouble);
  nn::LoraEmbeddingImpl wide(*table, {.r = 2});
  CHECK(wide.factor_b().scalar_type() == at::kDouble);
  CHECK(wide.forward(at::tensor({1, 2})).scalar_type() == at::kDouble);
}

TEST_CASE("an adapter beside padding has no gradient there", "[nn][lora]") {
  nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).padding_idx(1));
  nn::LoraEmbeddingImpl adapter(*table, {.r = 2});
  adapter.forward(at::tensor({1, 2, 2})).sum().backward();
  const at::Tensor grad = adapter.factor_a().grad();  // [r, V]
  CHECK(grad.select(1, 1).eq(0).all().item<bool>());
  CHECK(grad.select(1, 2).ne(0).any().item<bool>());
}

TEST_CASE("what an adapter cannot be is refused", "[nn][lora]") {
  nn::Linear layer(6, 4);
  CHECK_THROWS_WITH(nn::LoraLinear(*layer, {.r = 0}), ContainsSubstring("r is 0"));
  CHECK_THROWS_WITH(nn::LoraLinear(*layer, {.dropout = 1}), ContainsSubstring("dropout is 1"));
  nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).max_norm(1.0));
  CHECK_THROWS_WITH(nn::LoraEmbeddingImpl(*table, {}), ContainsSubstring("max_norm 1"));
  nn::LoraLinear adapter(*layer, {});
  CHECK_THROWS_WITH(adapter.clone(), ContainsSubstring("cannot be cloned"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
