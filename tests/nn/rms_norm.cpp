#include <tutti/nn/rms_norm.hpp>

#include <memory>
#include <vector>

#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::nn::RMSNorm;
namespace functional = tutti::functional;

// The formula, in double.
at::Tensor by_formula(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor y = wide / (wide.pow(2).mean(-1, true) + eps).sqrt();
  return weight.defined() ? weight.to(at::kDouble) * y : y;
}

}  // namespace

TEST_CASE("RMSNorm and its gradients are those of the formula", "[nn][law]") {
  torch::manual_seed(1);
  // Widths with and without a rest behind the vectors; enough rows for several pieces.
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {5}, {3, 8}, {2, 3, 16}, {4, 37}, {2, 5, 3, 24}, {700, 96}}) {
    for (const bool weighted : {false, true}) {
      INFO("shape " << at::IntArrayRef(shape) << ", weighted " << weighted);
      const at::Tensor x = at::randn(shape).mul_(3).requires_grad_();
      const at::Tensor weight =
          weighted ? at::randn({shape.back()}).requires_grad_() : at::Tensor();
      const at::Tensor dy = at::randn(shape);
      const at::Tensor y = functional::rms_norm(x, weight, 1e-3);
      y.backward(dy);

      const at::Tensor x2 = x.detach().to(at::kDouble).requires_grad_();
      const at::Tensor w2 =
          weighted ? weight.detach().to(at::kDouble).requires_grad_() : at::Tensor();
      const at::Tensor y2 = by_formula(x2, w2, 1e-3);
      y2.backward(dy.to(at::kDouble));
      CHECK(y.to(at::kDouble).allclose(y2, 1e-5, 1e-6));
      CHECK(x.grad().to(at::kDouble).allclose(x2.grad(), 1e-4, 1e-5));
      if (weighted) {
        CHECK(weight.grad().to(at::kDouble).allclose(w2.grad(), 1e-4, 1e-4));
      }
    }
  }
}

TEST_CASE("RMSNorm takes tensors that are not contiguous, and empty ones", "[nn]") {
  torch::manual_seed(2);
  const at::Tensor wide = at::randn({4, 12}).requires_grad_();
  const at::Tensor weight = at::randn({6}).requires_grad_();
  const at::Tensor part = wide.slice(1, 3, 9);
  const at::Tensor y = functional::rms_norm(part, weight, 1e-6);
  CHECK(y.to(at::kDouble).allclose(by_formula(part, weight, 1e-6), 1e-5, 1e-6));
  y.sum().backward();
  CHECK(wide.grad().slice(1, 0, 3).eq(0).all().item<bool>());
  CHECK(wide.grad().slice(1, 3, 9).ne(0).any().item<bool>());
  CHECK(functional::rms_norm(at::empty({0, 6}), weight, 1e-6).sizes() == at::IntArrayRef{0, 6});
}

TEST_CASE("only the gradients that are wanted are computed", "[nn]") {
  const at::Tensor x = at::randn({3, 8}).requires_grad_();
  const at::Tensor weight = at::randn({8});
  functional::rms_norm(x, weight, 1e-6).sum().backward();
  CHECK(x.grad().defined());
  const at::Tensor fixed = at::randn({3, 8});
  const at::Tensor learns = at::randn({8}).requires_grad_();
  functional::rms_norm(fixed, learns, 1e-6).sum().backward();
  CHECK(learns.grad().defined());
  CHECK_FALSE(functional::rms_norm(fixed, weight, 1e-6).requires_grad());
}

TEST_CASE("gradients of RMSNorm have gradients", "[nn][law]") {
  torch::manual_seed(3);
  const auto twice = [](const at::Tensor& x, const at::Tensor& w, auto&& norm) {
    const auto first = torch::autograd::grad({norm(x, w).pow(3).sum()}, {x, w}, {}, true, true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, w});
  };
  const at::Tensor x = at::randn({4, 8}).requires_grad_();
  const at::Tensor w = at::randn({8}).requires_grad_();
  const auto ours = twice(x, w, [](const at::Tensor& a, const at::Tensor& b) {
    return functional::rms_norm(a, b, 1e-3);
  });
  const at::Tensor x2 = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor w2 = w.detach().to(at::kDouble).requires_grad_();
  const auto theirs = twice(
      x2, w2, [](const at::Tensor& a, const at::Tensor& b) { return by_formula(a, b, 1e-3); });
  CHECK(ours[0].to(at::kDouble).allclose(theirs[0], 1e-3, 1e-2));
  CHECK(ours[1].to(at::kDouble).allclose(theirs[1], 1e-3, 1e-2));
}

TEST_CASE("in low precision RMSNorm rounds before it multiplies by the weight", "[nn]") {
  torch::manual_seed(4);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::randn({5, 16}).to(type);
    const at::Tensor weight = at::randn({16}).to(type);
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor y = wide * (wide.pow(2).mean(-1, true) + 1e-6).rsqrt();
    CHECK(functional::rms_norm(x, weight, 1e-6).equal(weight * y.to(type)));
  }
}

TEST_CASE("the layer RMSNorm has one parameter, clones, and surgery can stand in for it",
          "[nn][surgery]") {
  RMSNorm layer(tutti::nn::RMSNormOptions{.size = 4, .eps = 0.25});
  CHECK(layer->named_parameters().size() == 1);
  CHECK(layer->weight.equal(at::ones({4})));
  const at::Tensor x = at::ones({2, 4});
  CHECK(layer(x).allclose(at::full({2, 4}, 1 / std::sqrt(1.25))));
  layer->weight.set_requires_grad(false);
  const auto copy = std::dynamic_pointer_cast<tutti::nn::RMSNormImpl>(layer->clone());
  CHECK(copy->forward(x).equal(layer(x)));
  CHECK_FALSE(copy->weight.is_same(layer->weight));
  CHECK_FALSE(copy->weight.requires_grad());
  layer->slot() = tutti::nn::Slot(std::make_shared<torch::nn::LinearImpl>(4, 7));
  CHECK(layer(x).size(1) == 7);
}

TEST_CASE("RMSNorm says when its weight does not fit", "[nn]") {
  CHECK_THROWS_WITH(functional::rms_norm(at::ones({2, 4}), at::ones({3}), 1e-6),
                    ContainsSubstring("[2, 4]") && ContainsSubstring("[3]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
