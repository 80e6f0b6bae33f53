#include <tutti/metrics/mean_squared_error.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("mean squared errors and their roots agree with torchmetrics", "[metrics][golden]") {
  check_against_torchmetrics("MeanSquaredError", [](const torchmetrics::Json& args) {
    return MeanSquaredError{
        {.squared = torchmetrics::get(args, "squared", true),
         .num_outputs = torchmetrics::get(args, "num_outputs", std::int64_t{1})}};
  });
}

TEST_CASE("the root of a mean squared error has a name of its own", "[metrics]") {
  CHECK(MeanSquaredError{}.name() == "MeanSquaredError");
  CHECK(MeanSquaredError{{.squared = false}}.name() == "RootMeanSquaredError");
  CHECK(MeanSquaredError{{.name = "error"}}.name() == "error");
  CHECK(std::isnan(MeanSquaredError{}.compute()));
}

TEST_CASE("errors of several outputs are reported one by one, and their mean computed",
          "[metrics]") {
  MeanSquaredError metric{{.num_outputs = 2}};
  metric.update(at::tensor({1.0, 2.0, 3.0, 4.0}).view({2, 2}), at::zeros({2, 2}));
  const torchmetrics::Reported reported(metric, metric.states());
  CHECK(reported.names == std::vector<std::string>{"MeanSquaredError_0", "MeanSquaredError_1"});
  CHECK(reported.values == std::vector<double>{5, 10});
  CHECK(metric.compute() == 7.5);
  metric.update(at::zeros({2, 2}, at::kLong), at::ones({2, 2}, at::kLong));
  CHECK(metric.compute() == 4.25);
}

TEST_CASE("shapes of errors that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH((MeanSquaredError{{.num_outputs = 0}}), ContainsSubstring("num_outputs is 0"));
  CHECK_THROWS_WITH(MeanSquaredError{}.update(at::zeros({2, 1}), at::zeros({2})),
                    ContainsSubstring("outputs [2, 1] and targets [2], expected one shape"));
  CHECK_THROWS_WITH((MeanSquaredError{{.num_outputs = 3}}.update(at::zeros({2}), at::zeros({2}))),
                    ContainsSubstring("outputs [2], expected [N, 3]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
