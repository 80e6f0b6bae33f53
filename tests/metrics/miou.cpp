#include <tutti/metrics/miou.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "metrics/support.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("mean intersection over union agrees with the reference after every batch",
          "[metrics][golden]") {
  check_against_reference("metric_MIoU", [](const golden::Json& args) {
    return tutti::MIoU{args["num_classes"].integer()};
  });
}

TEST_CASE("mean intersection over union is 100 when right, and leaves out ignored pixels",
          "[metrics][law]") {
  const auto y = at::randint(0, 3, {2, 4, 4}, at::kLong);
  const auto x = at::one_hot(y, 3).permute({0, 3, 1, 2}).to(at::kFloat);
  tutti::MIoU metric{3};
  metric.update(x, y);
  CHECK(metric.compute() == 100.0);
  metric.update(x.flip({1}), at::full({2, 4, 4}, -1, at::kLong));
  CHECK(metric.compute() == 100.0);
}

TEST_CASE("shapes and numbers of classes that do not fit are refused by MIoU", "[metrics]") {
  CHECK_THROWS_WITH(tutti::MIoU{0}, ContainsSubstring("num_classes is 0, expected 1 or more"));
  CHECK_THROWS_WITH(tutti::MIoU{3}.update(at::zeros({2, 3, 4}), at::zeros({2, 5}, at::kLong)),
                    ContainsSubstring("outputs [2, 3, 4] and targets [2, 5]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
