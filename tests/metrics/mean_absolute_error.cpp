#include <tutti/metrics/mean_absolute_error.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("mean absolute errors agree with torchmetrics", "[metrics][golden]") {
  check_against_torchmetrics("MeanAbsoluteError", [](const torchmetrics::Json& args) {
    return MeanAbsoluteError{
        {.num_outputs = torchmetrics::get(args, "num_outputs", std::int64_t{1})}};
  });
}

TEST_CASE("a mean absolute error takes half precision and any shape", "[metrics][law]") {
  MeanAbsoluteError metric;
  metric.update(at::full({2, 3, 2}, 1.5, at::kHalf), at::zeros({2, 3, 2}));
  CHECK(metric.compute() == 1.5);
  CHECK(metric.name() == "MeanAbsoluteError");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
