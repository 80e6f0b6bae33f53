#include <tutti/metrics/f1_score.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("F1Score agrees with torchmetrics for every task, average and option",
          "[metrics][golden]") {
  check_tasks_against_torchmetrics("F1Score", [](Task task, const torchmetrics::Json& args) {
    using torchmetrics::get;
    return F1Score{{.task = task,
                    .num_classes = get(args, "num_classes", std::int64_t{0}),
                    .num_labels = get(args, "num_labels", std::int64_t{0}),
                    .threshold = get(args, "threshold", 0.5),
                    .average = torchmetrics::average(args, Average::micro),
                    .top_k = get(args, "top_k", std::int64_t{1}),
                    .ignore_index = torchmetrics::ignored(args),
                    .zero_division = get(args, "zero_division", 0.0)}};
  });
}

}  // namespace UNITY_BUILD_UNIQUE_ID
