#include <tutti/metrics/cross_entropy.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "metrics/support.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the cross entropy metric agrees with the reference after every batch",
          "[metrics][golden]") {
  check_against_reference("metric_CrossEntropy",
                          [](const golden::Json&) { return tutti::CrossEntropy{}; });
}

TEST_CASE("the cross entropy metric is the mean of the batches' means", "[metrics][law]") {
  const auto x = at::randn({5, 3});
  const auto y = at::randint(0, 3, {5}, at::kLong);
  tutti::CrossEntropy metric;
  metric.update(x, y);
  metric.update(x.slice(0, 0, 1), y.slice(0, 0, 1));
  const double want = (at::cross_entropy_loss(x, y).item<double>() +
                       at::cross_entropy_loss(x.slice(0, 0, 1), y.slice(0, 0, 1)).item<double>()) /
                      2;
  CHECK(std::abs(metric.compute() - want) < 1e-7);

  tutti::CrossEntropy of_halves;  // whose mean is not rounded to their type
  of_halves.update(at::zeros({5, 3}, at::kBFloat16), y);
  CHECK(std::abs(of_halves.compute() - std::log(3.0)) < 1e-6);
}

TEST_CASE("the cross entropy metric leaves out the ignored index and keeps no graph",
          "[metrics][law]") {
  auto x = at::randn({3, 4}).requires_grad_();
  tutti::CrossEntropy metric{7};
  metric.update(x, at::tensor({1, 7, 2}, at::kLong));
  CHECK_FALSE(metric.states().at(0).requires_grad());
  tutti::CrossEntropy other;
  other.update(x.detach().index_select(0, at::tensor({0, 2}, at::kLong)),
               at::tensor({1, 2}, at::kLong));
  CHECK(std::abs(metric.compute() - other.compute()) < 1e-6);
  CHECK_THROWS_WITH(metric.update(x, at::zeros({4}, at::kDouble)),
                    ContainsSubstring("expected an integer type"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
