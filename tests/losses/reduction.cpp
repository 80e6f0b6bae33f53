#include <tutti/losses/reduction.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Reduction;
using tutti::detail::reduce;
using tutti::detail::to_aten;

static_assert(to_string(Reduction::none) == "none");
static_assert(to_string(Reduction::mean) == "mean");
static_assert(to_string(Reduction::sum) == "sum");
static_assert(to_string(static_cast<Reduction>(9)) == "unknown");

TEST_CASE("losses are kept, averaged or summed up, over all positions", "[losses][law]") {
  const at::Tensor losses = at::arange(6, at::kFloat).reshape({2, 3});
  CHECK(reduce(losses, Reduction::none).is_same(losses));
  CHECK(reduce(losses, Reduction::mean).equal(at::scalar_tensor(2.5F)));
  CHECK(reduce(losses, Reduction::sum).equal(at::scalar_tensor(15.0F)));
}

TEST_CASE("reduced losses keep their type and their gradient", "[losses]") {
  const at::Tensor losses = at::ones({4}, at::kDouble).requires_grad_();
  reduce(losses, Reduction::mean).backward();
  CHECK(losses.grad().equal(at::full({4}, 0.25, at::kDouble)));
  CHECK(reduce(at::ones({2}, at::kHalf), Reduction::sum).scalar_type() == at::kHalf);
}

TEST_CASE("no losses at all sum up to 0 and have no mean", "[losses]") {
  const at::Tensor none = at::empty({0, 3});
  CHECK(reduce(none, Reduction::sum).item<double>() == 0);
  CHECK(std::isnan(reduce(none, Reduction::mean).item<double>()));
  CHECK(reduce(none, Reduction::none).numel() == 0);
}

TEST_CASE("LibTorch's own losses reduce alike when told by its numbers", "[losses][law]") {
  const at::Tensor x = at::arange(6, at::kFloat).reshape({2, 3});
  const at::Tensor y = at::zeros({2, 3});
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    CHECK(at::l1_loss(x, y, to_aten(reduction)).equal(reduce((x - y).abs(), reduction)));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
