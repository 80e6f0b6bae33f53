#include <tutti/metrics/dice.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "metrics/support.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the dice metric agrees with the reference after every batch", "[metrics][golden]") {
  check_against_reference("metric_Dice", [](const golden::Json& args) {
    return tutti::Dice{args["num_classes"].integer()};
  });
}

TEST_CASE("a class nowhere to be found scores one, a class made up scores nothing",
          "[metrics][law]") {
  const auto background = at::zeros({1, 4}, at::kLong);
  auto x = at::zeros({1, 3, 4});
  x.select(1, 0).fill_(1);
  tutti::Dice metric{2};
  metric.update(x, background);
  CHECK(metric.compute() == 100.0);
  x.select(1, 2).fill_(2);
  metric.reset();
  metric.update(x, background);
  CHECK(metric.compute() == 50.0);
}

TEST_CASE("dice counts foreground classes and says so", "[metrics]") {
  CHECK_THROWS_WITH(tutti::Dice{0}, ContainsSubstring("expected 1 or more foreground classes"));
  CHECK_THROWS_WITH(
      tutti::Dice{3}.update(at::zeros({2, 3, 4}), at::zeros({2, 4}, at::kLong)),
      ContainsSubstring("expected scores [N, 4, ...] (the background and 3 classes)"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
