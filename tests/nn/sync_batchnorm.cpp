#include <tutti/nn/sync_batchnorm.hpp>

#include <memory>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
namespace nn = tutti::nn;

// One process: the sum is what it has.
const tutti::SumOverRanks alone = [](const at::Tensor&) {};
// Two ranks with the same batch.
const tutti::SumOverRanks twice = [](const at::Tensor& one) { one.mul_(2); };

struct Pass {
  std::vector<at::Tensor> tensors;
};

template <class Module>
Pass pass(Module& layer, const at::Tensor& x) {
  Pass out;
  const at::Tensor input = x.clone().requires_grad_();
  for (int i = 0; i < 2; ++i) {
    const at::Tensor y = layer.forward(input);
    (y * at::arange(y.numel(), y.options()).view(y.sizes()).sin()).sum().backward();
    out.tensors.push_back(y.detach());
  }
  out.tensors.push_back(input.grad());
  for (const at::Tensor& parameter : layer.parameters()) {
    out.tensors.push_back(parameter.grad());
  }
  for (const at::Tensor& buffer : layer.buffers()) {
    out.tensors.push_back(buffer.to(x.scalar_type()));
  }
  layer.eval();
  out.tensors.push_back(layer.forward(x).detach());
  return out;
}

void check(const Pass& a, const Pass& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    INFO(i);
    CHECK(a.tensors[i].allclose(b.tensors[i], 1e-9, 1e-11));
  }
}

}  // namespace

TEST_CASE("alone it is the plain layer, whatever its options", "[nn][law]") {
  at::manual_seed(1);
  using Options = torch::nn::BatchNormOptions;
  for (const Options& options : {Options(3), Options(3).momentum(std::nullopt).eps(1e-3),
                                 Options(3).affine(false), Options(3).track_running_stats(false)}) {
    nn::BatchNorm2dImpl plain(options);
    plain.to(at::kDouble);
    const auto copy = std::dynamic_pointer_cast<nn::BatchNorm2dImpl>(plain.clone());
    nn::SyncBatchNorm2d layer(*copy, alone);
    const at::Tensor x = at::randn({5, 3, 2, 2}, at::kDouble) * 3 + 100;
    check(pass(layer, x), pass(plain, x));
  }
}

TEST_CASE("statistics are those of all ranks", "[nn][law]") {
  at::manual_seed(1);
  nn::BatchNorm1dImpl plain(torch::nn::BatchNormOptions(3));
  nn::BatchNorm1dImpl other(torch::nn::BatchNormOptions(3));
  nn::SyncBatchNorm1d layer(other, twice);
  const at::Tensor x = at::randn({5, 3});
  const at::Tensor whole = plain.forward(at::cat({x, x}));
  CHECK(layer.forward(x).allclose(whole.slice(0, 0, 5), 1e-5, 1e-6));
  CHECK(layer.running_var.allclose(plain.running_var, 1e-5, 1e-6));
  // As wide as bf16 allows.
  const at::Tensor half = layer.forward(x.to(at::kBFloat16));
  CHECK(half.scalar_type() == at::kBFloat16);
  CHECK(half.to(at::kFloat).allclose(whole.slice(0, 0, 5), 2e-2, 2e-2));
}

TEST_CASE("it is a batch normalisation that can be cloned", "[nn]") {
  nn::BatchNorm1dImpl plain(torch::nn::BatchNormOptions(2));
  const nn::SyncBatchNorm1d layer(plain, twice);
  CHECK(layer.weight.is_same(plain.weight));
  const auto copy = layer.clone();
  CHECK(dynamic_cast<nn::SyncBatchNorm*>(copy.get()) != nullptr);
  CHECK(dynamic_cast<torch::nn::BatchNorm1dImpl*>(copy.get()) != nullptr);
  CHECK_FALSE(copy->parameters()[0].is_same(plain.weight));
}

TEST_CASE("it says what it cannot normalise", "[nn]") {
  nn::BatchNorm1dImpl plain(torch::nn::BatchNormOptions(2));
  nn::SyncBatchNorm1d layer(plain, alone);
  CHECK_THROWS_WITH(layer.forward(at::ones({1, 2})),
                    ContainsSubstring("more than one number per channel"));
  CHECK_THROWS_WITH(layer.forward(at::ones({2})), ContainsSubstring("expected [N, C, ...]"));
  const at::Tensor x = at::randn({4, 2}).requires_grad_();
  CHECK_THROWS_WITH(
      torch::autograd::grad({layer.forward(x).sum()}, {x}, {}, true, /*create_graph=*/true),
      ContainsSubstring("gradients of gradients"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
