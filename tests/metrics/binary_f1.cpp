#include <tutti/metrics/binary_f1.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "metrics/support.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the F1 score agrees with the reference after every batch", "[metrics][golden]") {
  check_against_reference("metric_BinaryF1Score",
                          [](const golden::Json&) { return tutti::BinaryF1Score{}; });
}

TEST_CASE("the F1 score is the harmonic mean of precision and recall", "[metrics][law]") {
  const auto said = at::tensor({1, 1, 1, 0, 0, 0, 1}, at::kLong);
  const auto there = at::tensor({1, 1, 0, 1, 0, 0, 0}, at::kLong);
  tutti::BinaryF1Score metric;
  metric.update(at::one_hot(said, 2).to(at::kFloat), there);
  const double precision = 2.0 / 4.0;
  const double recall = 2.0 / 3.0;
  CHECK(std::abs(metric.compute() - 2 * precision * recall / (precision + recall)) < 1e-12);
}

TEST_CASE("targets that are neither class count for nothing", "[metrics]") {
  const auto said = at::tensor({1, 1, 0, 1, 0}, at::kLong);
  const auto there = at::tensor({1, 0, 1, -100, -100}, at::kLong);
  tutti::BinaryF1Score metric;
  metric.update(at::one_hot(said, 2).to(at::kFloat), there);
  CHECK(std::abs(metric.compute() - 0.5) < 1e-12);  // one right, one said too often, one missed
}

TEST_CASE("outputs of other than two classes are refused by the F1 score", "[metrics]") {
  CHECK_THROWS_WITH(tutti::BinaryF1Score{}.update(at::zeros({2, 3}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("expected scores [N, 2, ...]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
