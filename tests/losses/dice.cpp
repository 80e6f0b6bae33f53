#include <tutti/losses/dice.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::DiceLoss;
using tutti::Reduction;

namespace {
DiceLoss from(const golden::Json& args) {
  const auto flag = [&](const char* key) {
    const auto* given = args.find(key);
    return given != nullptr && given->boolean();
  };
  DiceLoss loss{.sigmoid = flag("sigmoid"),
                .softmax = flag("softmax"),
                .squared_pred = flag("squared_pred"),
                .jaccard = flag("jaccard"),
                .batch = flag("batch"),
                .ignore_absent_classes = flag("ignore_absent_classes")};
  if (const auto* reduction = args.find("reduction")) {
    loss.reduction = reduction->string() == "sum" ? Reduction::sum : Reduction::none;
  }
  return loss;
}
}  // namespace

TEST_CASE("the dice loss and its gradient agree with the reference", "[losses][golden]") {
  for (const auto& c : golden::cases("DiceLoss")) {
    const auto x = c.in("x").requires_grad_();
    const auto loss = from(c.params["args"])(x, c.in("y"));
    (c.has_in("g") ? (loss * c.in("g")).sum() : loss).backward();
    CHECK_GOLDEN(c, "loss", loss);
    CHECK_GOLDEN(c, "grad", x.grad());
  }
}

TEST_CASE("a perfect prediction has no dice loss and a wrong one has all of it", "[losses][law]") {
  const auto y = at::randint(0, 2, {2, 4, 4}, at::kLong);
  const auto right = tutti::functional::ensure_targets_one_hot(at::zeros({2, 2, 4, 4}), y);
  const DiceLoss loss;
  CHECK(loss(right, y).item<double>() < 1e-6);
  CHECK(loss(1 - right, y).item<double>() > 1 - 1e-4);
  // over the batch no further dimension is needed: 1 - 2 * 0.5 / (1 + 1) and 1 - 2 * 1 / (2 + 1)
  const DiceLoss over_batch{.batch = true, .reduction = Reduction::none};
  const auto two = at::tensor({0.5F, 1.0F, 0.5F, 1.0F}).view({2, 2});
  CHECK(over_batch(two, at::tensor({0, 1}, at::kLong))
            .allclose(at::tensor({0.5F, 1.0F / 3}), 1e-4, 1e-4));
}

TEST_CASE("absent classes left out by reduction none are those left out by the mean",
          "[losses][law]") {
  const auto x = at::randn({2, 5, 3, 3});
  const auto y = at::randint(0, 2, {2, 3, 3}, at::kLong).mul(3);  // classes 0 and 3 alone
  for (const bool batch : {false, true}) {
    DiceLoss loss{.softmax = true, .batch = batch, .ignore_absent_classes = true};
    const auto mean = loss(x, y);
    loss.reduction = Reduction::none;
    const auto each = loss(x, y);
    CHECK(each.size(batch ? 0 : 1) == 2);
    CHECK(each.mean().allclose(mean, 1e-5, 1e-6));
    loss.reduction = Reduction::sum;
    CHECK(loss(x, y).allclose(each.sum(), 1e-5, 1e-6));
  }
}

TEST_CASE("dice options that contradict each other are refused", "[losses]") {
  CHECK_THROWS_WITH((DiceLoss{.sigmoid = true, .softmax = true}(at::zeros({1, 2, 3}),
                                                                at::zeros({1, 3}, at::kLong))),
                    ContainsSubstring("choose one of them"));
  CHECK_THROWS_WITH(DiceLoss{}(at::zeros({1, 2}), at::zeros({1}, at::kLong)),
                    ContainsSubstring("expected [N, C, d1, ...]"));
  CHECK_THROWS_WITH(DiceLoss{}(at::zeros({4, 2, 3}), at::zeros({1, 3}, at::kLong)),
                    ContainsSubstring("expected one target for each example"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
