#include <tutti/nn/swiglu.hpp>

#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::functional::swiglu;

at::Tensor by_formula(const at::Tensor& gate, const at::Tensor& up) {
  return gate.to(at::kDouble) / (1 + gate.to(at::kDouble).neg().exp()) * up.to(at::kDouble);
}

}  // namespace

TEST_CASE("SwiGLU and its gradients are those of the formula", "[nn][law]") {
  torch::manual_seed(1);
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{1}, {3, 8}, {2, 5, 7}, {300, 150}}) {
    INFO(at::IntArrayRef(shape));
    const at::Tensor gate = at::randn(shape).mul_(4).requires_grad_();
    const at::Tensor up = at::randn(shape).requires_grad_();
    const at::Tensor dy = at::randn(shape);
    const at::Tensor y = swiglu(gate, up);
    y.backward(dy);
    const at::Tensor g2 = gate.detach().to(at::kDouble).requires_grad_();
    const at::Tensor u2 = up.detach().to(at::kDouble).requires_grad_();
    const at::Tensor y2 = by_formula(g2, u2);
    y2.backward(dy.to(at::kDouble));
    CHECK(y.to(at::kDouble).allclose(y2, 2e-6, 1e-7));
    CHECK(gate.grad().to(at::kDouble).allclose(g2.grad(), 1e-5, 1e-6));
    CHECK(up.grad().to(at::kDouble).allclose(u2.grad(), 2e-6, 1e-7));
  }
}

TEST_CASE("SwiGLU of large and strange numbers is what the formula's limits are", "[nn]") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor gate = at::tensor({-1e30F, -200.0F, -90.0F, 0.0F, 90.0F, 1e30F, inf, nan});
  const at::Tensor y = swiglu(gate, at::ones({8}));
  CHECK(y[0].abs().item<float>() < 1e-6F);
  CHECK(y[1].abs().item<float>() < 1e-30F);
  CHECK(y[3].item<float>() == 0);
  CHECK(y[4].item<float>() == 90);
  CHECK(y[5].item<float>() == 1e30F);
  CHECK(y[6].item<float>() == inf);
  CHECK(std::isnan(y[7].item<float>()));
}

TEST_CASE("SwiGLU takes views, other types, and says when shapes differ", "[nn]") {
  torch::manual_seed(2);
  const at::Tensor both = at::randn({3, 16}).requires_grad_();
  const auto parts = both.chunk(2, -1);
  const at::Tensor y = swiglu(parts[0], parts[1]);
  CHECK(y.to(at::kDouble).allclose(by_formula(parts[0], parts[1]), 1e-5, 1e-6));
  y.sum().backward();
  CHECK(both.grad().ne(0).all().item<bool>());
  const at::Tensor half = at::randn({4}).to(at::kBFloat16);
  CHECK(swiglu(half, half).equal(at::silu(half) * half));
  CHECK(swiglu(at::empty({0, 4}), at::empty({0, 4})).numel() == 0);
  CHECK_THROWS_WITH(swiglu(at::ones({2}), at::ones({3})), ContainsSubstring("[2]"));
}

TEST_CASE("gradients of SwiGLU have gradients", "[nn][law]") {
  torch::manual_seed(3);
  const auto twice = [](const at::Tensor& gate, const at::Tensor& up, auto&& of) {
    const auto first =
        torch::autograd::grad({of(gate, up).pow(2).sum()}, {gate, up}, {}, true, true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].sum()}, {gate, up});
  };
  const at::Tensor gate = at::randn({9}).requires_grad_();
  const at::Tensor up = at::randn({9}).requires_grad_();
  const auto ours = twice(gate, up, swiglu);
  const auto theirs = twice(gate.detach().to(at::kDouble).requires_grad_(),
                            up.detach().to(at::kDouble).requires_grad_(), by_formula);
  CHECK(ours[0].to(at::kDouble).allclose(theirs[0], 1e-3, 1e-4));
  CHECK(ours[1].to(at::kDouble).allclose(theirs[1], 1e-3, 1e-4));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
