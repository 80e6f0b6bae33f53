#include <tutti/metrics/average_precision.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("AveragePrecision agrees with torchmetrics for every task, average and option",
          "[metrics][golden]") {
  check_tasks_against_torchmetrics("AveragePrecision", [](Task task,
                                                          const torchmetrics::Json& args) {
    using torchmetrics::get;
    const AveragePrecisionOptions options{.task = task,
                                          .num_classes = get(args, "num_classes", std::int64_t{0}),
                                          .num_labels = get(args, "num_labels", std::int64_t{0}),
                                          .average = torchmetrics::average(args, Average::macro),
                                          .ignore_index = torchmetrics::ignored(args)};
    return AveragePrecision{options};
  });
}

TEST_CASE("classes that no target has are left out of the mean average precision", "[metrics]") {
  AveragePrecision metric{{.task = Task::multiclass, .num_classes = 3, .average = Average::none}};
  metric.update(at::eye(3).slice(0, 0, 2), at::tensor({0, 1}, at::kLong));
  const torchmetrics::Reported reported(metric, metric.states());
  REQUIRE(reported.values.size() == 3);
  CHECK(reported.values[0] == 1);
  CHECK(std::isnan(reported.values[2]));
  CHECK(metric.compute() == 1);
  CHECK(metric.name() == "MulticlassAveragePrecision");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
