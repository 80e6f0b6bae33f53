#include <tutti/metrics/loss_metric.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the loss metric is the mean over batches of any loss", "[metrics][law]") {
  tutti::LossMetric metric{
      [](const at::Tensor& x, const at::Tensor& y) { return (x - y).abs().mean(); }, "L1"};
  CHECK(metric.name() == "L1");
  auto x = at::full({4}, 3.0).requires_grad_();
  metric.update(x, at::zeros({4}));
  metric.update(at::full({2}, 1.0), at::zeros({2}));
  CHECK(metric.compute() == 2.0);
  CHECK_FALSE(metric.states().at(0).requires_grad());
  const auto copy = metric.clone();
  CHECK(copy->name() == "L1");
  copy->update(x, at::ones({4}));
  CHECK(copy->compute() == 2.0);
}

TEST_CASE("a loss that is no scalar and no loss at all are refused", "[metrics]") {
  tutti::LossMetric metric{[](const at::Tensor& x, const at::Tensor&) { return x; }};
  CHECK_THROWS_WITH(metric.update(at::zeros({3}), at::zeros({3})),
                    ContainsSubstring("LossMetric: the loss gave [3], expected a scalar"));
  CHECK_THROWS_WITH((tutti::LossMetric{tutti::LossMetric::Function{}}),
                    ContainsSubstring("no loss was given"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
