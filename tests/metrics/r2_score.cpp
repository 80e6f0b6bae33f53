#include <tutti/metrics/r2_score.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("R2 scores agree with torchmetrics", "[metrics][golden]") {
  check_against_torchmetrics("R2Score", [](const torchmetrics::Json& args) {
    const std::map<std::string, MultiOutput> outputs{
        {"uniform_average", MultiOutput::uniform_average},
        {"variance_weighted", MultiOutput::variance_weighted},
        {"raw_values", MultiOutput::raw_values}};
    return R2Score{{.adjusted = args["adjusted"].integer(),
                    .multioutput = outputs.at(args["multioutput"].string())}};
  });
}

TEST_CASE("the R2 score of targets with a large offset loses no digits", "[metrics][law]") {
  at::manual_seed(6);
  const at::Tensor y = at::randn({50}, at::kDouble);
  const at::Tensor x = y.add(at::randn({50}, at::kDouble).mul(0.3));
  R2Score plain;
  plain.update(x, y);
  R2Score far;
  far.update(x.add(1e6), y.add(1e6));
  CHECK(std::abs(plain.compute() - far.compute()) < 1e-7);
}

TEST_CASE("options and shapes of an R2 score that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH((R2Score{{.adjusted = -1}}), ContainsSubstring("adjusted is -1"));
  CHECK_THROWS_WITH(R2Score{}.update(at::zeros({2, 2, 2}), at::zeros({2, 2, 2})),
                    ContainsSubstring("outputs [2, 2, 2], expected [N] or [N, K]"));
  CHECK_THROWS_WITH(R2Score{}.update(at::zeros({2}), at::zeros({3})),
                    ContainsSubstring("expected one shape"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
