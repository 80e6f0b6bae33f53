#include <tutti/metrics/auroc.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

TEST_CASE("AUROC agrees with torchmetrics for every task, average and option",
          "[metrics][golden]") {
  check_tasks_against_torchmetrics("AUROC", [](Task task, const torchmetrics::Json& args) {
    using torchmetrics::get;
    AUROCOptions options{.task = task,
                         .num_classes = get(args, "num_classes", std::int64_t{0}),
                         .num_labels = get(args, "num_labels", std::int64_t{0}),
                         .average = torchmetrics::average(args, Average::macro),
                         .ignore_index = torchmetrics::ignored(args)};
    if (args.contains("max_fpr")) {
      options.max_fpr = args["max_fpr"].number();
    }
    return AUROC{options};
  });
}

TEST_CASE("the area under a curve is that of pairs in the right order, ties counting half",
          "[metrics][law]") {
  at::manual_seed(2);
  const at::Tensor scores = at::randint(0, 20, {60}, at::kFloat).div(20);
  const at::Tensor targets = at::randint(0, 2, {60}, at::kLong);
  AUROC metric;
  metric.update(scores, targets);
  const at::Tensor high = scores.masked_select(targets.eq(1)).unsqueeze(1);
  const at::Tensor low = scores.masked_select(targets.eq(0));
  const double right = high.gt(low).sum().item<double>() + high.eq(low).sum().item<double>() / 2;
  CHECK(std::abs(metric.compute() - right / static_cast<double>(high.numel() * low.numel())) <
        1e-12);
}

TEST_CASE("what a metric keeps of a batch shares no memory with it", "[metrics]") {
  AUROC metric;
  const at::Tensor scores = at::tensor({0.1F, 0.9F});
  const at::Tensor targets = at::tensor({0, 1}, at::kLong);
  metric.update(scores, targets);
  scores.fill_(0.5);
  targets.zero_();
  CHECK(metric.compute() == 1);
  at::Tensor with_gradient = at::full({2}, 0.5, at::TensorOptions().requires_grad(true));
  metric.update(with_gradient, targets);
  CHECK_FALSE(metric.states()[0].requires_grad());
}

TEST_CASE("options and inputs of a curve that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH((AUROC{{.max_fpr = 1.5}}), ContainsSubstring("BinaryAUROC: max_fpr is 1.5"));
  CHECK_THROWS_WITH((AUROC{{.task = Task::multiclass}}), ContainsSubstring("num_classes is 0"));
  CHECK_THROWS_WITH(
      (AUROC{{.task = Task::multiclass, .num_classes = 3, .average = Average::micro}}),
      ContainsSubstring("the average is micro, expected macro, weighted or none"));
  AUROC metric;
  CHECK_THROWS_WITH(metric.update(at::zeros({2}), at::zeros({2})),
                    ContainsSubstring("expected scores of a floating type and targets of an"));
  CHECK_THROWS_WITH(metric.set_states({}), ContainsSubstring("0 states were given, expected 2"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
