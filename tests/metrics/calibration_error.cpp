#include <tutti/metrics/calibration_error.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("calibration errors agree with torchmetrics for every task, norm and number of bins",
          "[metrics][golden]") {
  check_tasks_against_torchmetrics(
      "CalibrationError",
      [](Task task, const torchmetrics::Json& args) {
        using torchmetrics::get;
        const std::map<std::string, CalibrationNorm> norms{{"l1", CalibrationNorm::l1},
                                                           {"l2", CalibrationNorm::l2},
                                                           {"max", CalibrationNorm::max}};
        return CalibrationError{{.task = task,
                                 .num_classes = get(args, "num_classes", std::int64_t{0}),
                                 .n_bins = get(args, "n_bins", std::int64_t{15}),
                                 .norm = norms.at(args["norm"].string()),
                                 .ignore_index = torchmetrics::ignored(args)}};
      },
      /*labels=*/false);
}

TEST_CASE("a model that is as sure as it is right has no calibration error", "[metrics][law]") {
  CalibrationError metric{{.task = Task::binary, .n_bins = 4}};
  CHECK(std::isnan(metric.compute()));
  metric.update(at::full({4}, 0.75), at::tensor({1, 1, 0, 1}, at::kLong));
  CHECK(metric.compute() == 0);
  metric.update(at::full({4}, 0.25), at::tensor({1, 1, 1, 1}, at::kLong));
  CHECK(metric.compute() == 0.375);
  CHECK(metric.name() == "BinaryCalibrationError");
}

TEST_CASE("options of a calibration error that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH(CalibrationError{}, ContainsSubstring("num_classes is 0"));
  CHECK_THROWS_WITH((CalibrationError{{.task = Task::multilabel}}),
                    ContainsSubstring("the task is multilabel, expected binary or multiclass"));
  CHECK_THROWS_WITH((CalibrationError{{.task = Task::binary, .n_bins = 0}}),
                    ContainsSubstring("n_bins is 0, expected 1 or more"));
  CalibrationError metric{{.task = Task::binary}};
  CHECK_THROWS_WITH(metric.update(at::zeros({2}, at::kLong), at::zeros({2}, at::kLong)),
                    ContainsSubstring("expected scores of a floating type"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
