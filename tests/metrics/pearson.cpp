#include <tutti/metrics/pearson.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("Pearson's correlations agree with torchmetrics", "[metrics][golden]") {
  check_against_torchmetrics("PearsonCorrCoef", [](const torchmetrics::Json& args) {
    return PearsonCorrCoef{
        {.num_outputs = torchmetrics::get(args, "num_outputs", std::int64_t{1})}};
  });
}

TEST_CASE("Pearson's correlation does not mind an offset, batches or their order",
          "[metrics][law]") {
  at::manual_seed(5);
  const at::Tensor x = at::randn({40}, at::kDouble);
  const at::Tensor y = x.mul(0.5).add(at::randn({40}, at::kDouble));
  PearsonCorrCoef whole;
  whole.update(x, y);
  PearsonCorrCoef parts;
  for (const auto& [from, to] : {std::pair{30, 40}, std::pair{0, 29}, std::pair{29, 30}}) {
    parts.update(x.slice(0, from, to).add(1e6), y.slice(0, from, to).add(1e6));
  }
  CHECK(std::abs(whole.compute() - parts.compute()) < 1e-9);
  parts.update(x.slice(0, 0, 0), y.slice(0, 0, 0));  // nothing
  CHECK(std::abs(whole.compute() - parts.compute()) < 1e-9);
}

TEST_CASE("a constant side has no correlation, whatever its number", "[metrics][law]") {
  for (const double number : {0.1, 0.5, 1e9}) {
    PearsonCorrCoef metric;
    metric.update(at::randn({20}), at::full({20}, number));
    metric.update(at::randn({7}), at::full({7}, number));
    CHECK(std::isnan(metric.compute()));
  }
  CHECK(std::isnan(PearsonCorrCoef{}.compute()));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
