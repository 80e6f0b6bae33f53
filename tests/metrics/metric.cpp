#include <tutti/metrics/metric.hpp>

#include <cmath>
#include <type_traits>

#include <ATen/ATen.h>

#include <tutti/metrics/make_metrics.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("a function becomes a metric in one line: the mean over all examples", "[metrics][law]") {
  auto mae = metric<"MAE">([](const at::Tensor& x, const at::Tensor& y) { return (x - y).abs(); });
  CHECK(mae.name() == "MAE");
  CHECK(std::isnan(mae.compute()));
  mae.update(at::tensor({1.0, 2.0, 3.0}), at::zeros({3}));
  mae.update(at::tensor({6.0}), at::zeros({1}));
  CHECK(mae.compute() == 3);
  mae.update(at::empty({0}), at::empty({0}));  // no example changes nothing
  CHECK(mae.compute() == 3);
  mae.reset();
  mae.update(at::full({2, 5}, 2, at::kHalf), at::zeros({2, 5}, at::kHalf));
  CHECK(mae.compute() == 2);
}

TEST_CASE("a metric of a function that gives one number weighs batches by their examples",
          "[metrics][law]") {
  auto scalar = metric<"a">([](const at::Tensor& x, const at::Tensor&) { return x.mean(); });
  auto number =
      metric<"b">([](const at::Tensor& x, const at::Tensor&) { return x.mean().item<double>(); });
  auto whole = metric<"c">([](const at::Tensor& x, const at::Tensor&) { return x.size(0) > 1; });
  for (Metric* each : {static_cast<Metric*>(&scalar), static_cast<Metric*>(&number)}) {
    each->update(at::ones({3}), {});
    each->update(at::full({1}, 5.0), {});
    CHECK(each->compute() == 2);
  }
  whole.update(at::ones({3}), {});
  whole.update(at::ones({1}), {});
  CHECK(whole.compute() == 0.75);
}

TEST_CASE("a metric of a function may leave examples out", "[metrics][law]") {
  auto right = metric<"right">([](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor counted = y >= 0;
    return x.argmax(1).eq(y).masked_select(counted);
  });
  right.update(at::eye(3), at::tensor({0, 1, -1}, at::kLong));
  right.update(at::eye(3), at::tensor({-1, -1, 0}, at::kLong));
  CHECK(right.compute() == 2.0 / 3.0);
}

TEST_CASE("metrics of functions are collected, copied with what they hold, and add up over ranks",
          "[metrics][dist]") {
  const double factor = 3;
  const auto make = [&] {
    return metric<"scaled">(
        [factor](const at::Tensor& x, const at::Tensor&) { return x * factor; });
  };
  const Metrics metrics = make_metrics(make());
  const auto one = metrics[0]->clone();
  const auto other = metrics[0]->clone();
  one->update(at::ones({3}), {});
  other->update(at::full({1}, 5.0), {});
  auto sums = one->states();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = sums[i] + other->states()[i];
  }
  CHECK(one->compute(sums) == 6);
  CHECK(one->reduction(0) == StateReduction::sum);
  other->set_states(sums);
  CHECK(other->compute() == 6);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
