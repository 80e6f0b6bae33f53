#include <tutti/metrics/precision_score.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("PrecisionScore agrees with torchmetrics for every task, average and option",
          "[metrics][golden]") {
  check_tasks_against_torchmetrics("Precision", [](Task task, const torchmetrics::Json& args) {
    using torchmetrics::get;
    return PrecisionScore{{.task = task,
                           .num_classes = get(args, "num_classes", std::int64_t{0}),
                           .num_labels = get(args, "num_labels", std::int64_t{0}),
                           .threshold = get(args, "threshold", 0.5),
                           .average = torchmetrics::average(args, Average::micro),
                           .top_k = get(args, "top_k", std::int64_t{1}),
                           .ignore_index = torchmetrics::ignored(args),
                           .zero_division = get(args, "zero_division", 0.0)}};
  });
}

TEST_CASE("a metric of classes is named by its task, and reports each class under its number",
          "[metrics]") {
  CHECK(PrecisionScore{}.name() == "MulticlassPrecision");
  CHECK(PrecisionScore{{.task = Task::binary}}.name() == "BinaryPrecision");
  PrecisionScore metric{{.num_classes = 3, .average = Average::none}};
  metric.update(at::tensor({0, 0, 2}, at::kLong), at::tensor({0, 1, 1}, at::kLong));
  const torchmetrics::Reported reported(metric, metric.states());
  CHECK(reported.names == std::vector<std::string>{"MulticlassPrecision_0", "MulticlassPrecision_1",
                                                   "MulticlassPrecision_2"});
  CHECK(reported.values == std::vector<double>{0.5, 0, 0});
  CHECK(std::abs(metric.compute() - 0.5 / 3) < 1e-15);
}

TEST_CASE("options and shapes of a metric of classes that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH((PrecisionScore{{.average = Average::macro}}),
                    ContainsSubstring("MulticlassPrecision: num_classes is 0, expected the number "
                                      "of classes, 2 or more"));
  CHECK_THROWS_WITH((PrecisionScore{{.task = Task::multilabel}}),
                    ContainsSubstring("num_labels is 0, expected the number of labels"));
  CHECK_THROWS_WITH((PrecisionScore{{.threshold = 1.5}}), ContainsSubstring("threshold is 1.5"));
  CHECK_THROWS_WITH((PrecisionScore{{.top_k = 0}}), ContainsSubstring("top_k is 0"));
  CHECK_THROWS_WITH((PrecisionScore{{.zero_division = 2}}),
                    ContainsSubstring("zero_division is 2"));
  PrecisionScore binary{{.task = Task::binary}};
  CHECK_THROWS_WITH(binary.update(at::zeros({2, 2}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("outputs [2, 2] and targets [2], expected one shape"));
  PrecisionScore classes{{.num_classes = 3}};
  CHECK_THROWS_WITH(classes.update(at::zeros({2, 4}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("outputs [2, 4], expected 3 classes in dimension 1"));
  CHECK_THROWS_WITH(classes.update(at::zeros({2}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("expected scores [N, C, ...] and classes [N, ...]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
