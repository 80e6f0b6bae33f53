#include <tutti/losses/soft_cross_entropy.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Reduction;
namespace functional = tutti::functional;

namespace {
Reduction reduction_of(const golden::Json& args) {
  const auto* given = args.find("reduction");
  const std::string text = given == nullptr ? "mean" : given->string();
  return text == "none" ? Reduction::none : text == "sum" ? Reduction::sum : Reduction::mean;
}
}  // namespace

TEST_CASE("soft cross entropy and its gradient agree with the reference", "[losses][golden]") {
  for (const auto& c : golden::cases("soft_cross_entropy")) {
    const auto& args = c.params["args"];
    const auto x = c.in("x").requires_grad_();
    const auto* ignored = args.find("ignore_index");
    const auto loss = functional::soft_cross_entropy(
        x, c.in("y"), c.has_in("weight") ? c.in("weight") : at::Tensor(),
        ignored == nullptr ? -100 : ignored->integer(), reduction_of(args));
    (c.has_in("g") ? (loss * c.in("g")).sum() : loss).backward();
    CHECK_GOLDEN(c, "loss", loss);
    CHECK_GOLDEN(c, "grad", x.grad());
  }
}

TEST_CASE("one-hot targets give the loss of the indices they were made of", "[losses][law]") {
  at::manual_seed(3);
  const auto x = at::randn({6, 5, 2});
  const auto index = at::randint(0, 5, {6, 2}, at::kLong);
  const auto dense = functional::ensure_targets_one_hot(x, index);
  for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const auto a = functional::soft_cross_entropy(x, index, {}, -100, reduction);
    const auto b = functional::soft_cross_entropy(x, dense, {}, -100, reduction);
    CHECK(a.sizes() == b.sizes());
    CHECK(a.allclose(b, 1e-5, 1e-6));
  }
}

TEST_CASE("the mean over dense targets is over the weight they carry", "[losses][law]") {
  const auto x = at::randn({4, 3});
  auto y = at::rand({4, 3}).softmax(1);
  y[1].zero_();
  const auto none = functional::soft_cross_entropy(x, y, {}, -100, Reduction::none);
  const auto mean = functional::soft_cross_entropy(x, y);
  CHECK(mean.allclose(none.sum() / 3, 1e-5, 1e-6));
  // of one example alone, and of half of one
  CHECK(functional::soft_cross_entropy(x.slice(0, 0, 1), y.slice(0, 0, 1)).allclose(none[0]));
  CHECK(functional::soft_cross_entropy(x.slice(0, 0, 1), y.slice(0, 0, 1) / 2).allclose(none[0]));
}

TEST_CASE("indices of any integer type are taken", "[losses][law]") {
  const auto x = at::randn({4, 3});
  const auto y = at::tensor({0, 2, 1, 1}, at::kLong);
  const auto want = functional::soft_cross_entropy(x, y);
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt}) {
    CHECK(functional::soft_cross_entropy(x, y.to(type)).equal(want));
  }
}

TEST_CASE("half-precision logits against dense targets lose no precision in the sum",
          "[losses][law]") {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const auto x = at::randn({8, 5}).to(type).requires_grad_();
    const auto loss = functional::soft_cross_entropy(x, at::full({8, 5}, 0.2));
    CHECK(loss.scalar_type() == (type == at::kDouble ? at::kDouble : at::kFloat));
    loss.backward();
    CHECK(x.grad().scalar_type() == type);
  }
}

TEST_CASE("the options of the loss object reach the function", "[losses][law]") {
  const auto x = at::randn({4, 3});
  const auto y = at::tensor({0, 2, 1, 1}, at::kLong);
  const tutti::SoftCrossEntropy loss{
      .weight = at::tensor({1.0F, 2.0F, 3.0F}), .ignore_index = 1, .reduction = Reduction::sum};
  CHECK(loss(x, y).equal(functional::soft_cross_entropy(x, y, loss.weight, 1, Reduction::sum)));
  CHECK_FALSE(loss(x, y).equal(functional::soft_cross_entropy(x, y)));
}

TEST_CASE("targets that make no sense are refused", "[losses]") {
  const auto x = at::zeros({4, 3});
  CHECK_THROWS_WITH(functional::soft_cross_entropy(x, at::zeros({4, 3})),
                    ContainsSubstring("the dense targets sum up to 0, expected more than 0"));
  CHECK_THROWS_WITH(functional::soft_cross_entropy(x, at::zeros({4})),
                    ContainsSubstring("the targets [4] are Float, expected an integer type"));
  CHECK_THROWS_WITH(functional::soft_cross_entropy(x, at::zeros({4, 2})),
                    ContainsSubstring("the targets are [4, 2] and the outputs [4, 3]"));
}

TEST_CASE("an index out of range is refused with the classes that there are", "[losses]") {
  CHECK_THROWS_WITH(functional::soft_cross_entropy(at::zeros({2, 3}), at::tensor({0, 3})),
                    ContainsSubstring("Target 3 is out of bounds") &&
                        ContainsSubstring("have 3 classes, so targets are 0 to 2, or -100"));
  CHECK_THROWS_WITH(
      functional::soft_cross_entropy(at::zeros({2, 3, 4}), at::full({2, 4}, -1, at::kLong)),
      ContainsSubstring("Target -1 is out of bounds"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
