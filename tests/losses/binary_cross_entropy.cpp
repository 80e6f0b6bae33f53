#include <tutti/losses/binary_cross_entropy.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::BinaryCrossEntropyWithLogits;
using tutti::Reduction;

TEST_CASE("binary cross entropy and its gradient agree with the reference", "[losses][golden]") {
  for (const auto& c : golden::cases("binary_cross_entropy_with_logits")) {
    const auto& args = c.params["args"];
    BinaryCrossEntropyWithLogits options;
    if (const auto* reduction = args.find("reduction")) {
      REQUIRE(reduction->string() == "none");
      options.reduction = Reduction::none;
    }
    if (const auto* scale = args.find("scale_by_batch_size")) {
      options.scale_by_batch_size = scale->boolean();
    }
    options.weight = c.has_in("weight") ? c.in("weight") : at::Tensor();
    options.pos_weight = c.has_in("pos_weight") ? c.in("pos_weight") : at::Tensor();
    const auto x = c.in("x").requires_grad_();
    const auto loss = options(x, c.in("y"));
    (c.has_in("g") ? (loss * c.in("g")).sum() : loss).backward();
    CHECK_GOLDEN(c, "loss", loss);
    CHECK_GOLDEN(c, "grad", x.grad());
  }
}

TEST_CASE("a batch twice as large by repetition has the same binary cross entropy",
          "[losses][law]") {
  const auto x = at::randn({3, 4});
  const auto y = at::tensor({0, 3, 1}, at::kLong);
  const BinaryCrossEntropyWithLogits loss;
  CHECK(loss(at::cat({x, x}), at::cat({y, y})).allclose(loss(x, y), 1e-5, 1e-6));
}

TEST_CASE("binary cross entropy needs a target for each example", "[losses]") {
  const BinaryCrossEntropyWithLogits loss;
  for (const std::int64_t examples : {1, 2}) {
    CHECK_THROWS_WITH(loss(at::zeros({3, 4}), at::zeros({examples}, at::kLong)),
                      ContainsSubstring("expected one target for each example"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
