#include <tutti/metrics/spearman.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("Spearman's correlations agree with torchmetrics", "[metrics][golden]") {
  check_against_torchmetrics("SpearmanCorrCoef", [](const torchmetrics::Json& args) {
    return SpearmanCorrCoef{
        {.num_outputs = torchmetrics::get(args, "num_outputs", std::int64_t{1})}};
  });
}

TEST_CASE("Spearman's correlation sees nothing but the order", "[metrics][law]") {
  SpearmanCorrCoef metric;
  CHECK(std::isnan(metric.compute()));
  const at::Tensor x = at::linspace(-2, 2, 9);
  metric.update(x, x.exp());
  CHECK(std::abs(metric.compute() - 1) < 1e-6);
  metric.reset();
  metric.update(x, x.exp().neg());
  CHECK(std::abs(metric.compute() + 1) < 1e-6);
}

TEST_CASE("shapes and types that do not correlate are refused", "[metrics]") {
  SpearmanCorrCoef metric;
  CHECK_THROWS_WITH(metric.update(at::zeros({2, 3}), at::zeros({2, 3})),
                    ContainsSubstring("outputs [2, 3], expected [N] or [N, 1]"));
  CHECK_THROWS_WITH(metric.update(at::zeros({2}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("expected floating types"));
  CHECK_THROWS_WITH((SpearmanCorrCoef{{.num_outputs = 0}}), ContainsSubstring("num_outputs is 0"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
