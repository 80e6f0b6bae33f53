#include <tutti/metrics/confusion_matrix.hpp>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;
using Cells = std::vector<std::vector<std::string>>;

namespace {

// Reports its matrix as numbers, to be compared.
class Numbers final : public Metric {
 public:
  explicit Numbers(ConfusionMatrixOptions options) : matrix_(std::move(options)) {}
  using Metric::compute;
  void update(const at::Tensor& outputs, const at::Tensor& targets) override {
    matrix_.update(outputs, targets);
  }
  double compute(const std::vector<at::Tensor>& states) const override {
    return matrix_.compute(states);
  }
  std::vector<at::Tensor> states() const override { return matrix_.states(); }
  void set_states(std::vector<at::Tensor> states) override {
    matrix_.set_states(std::move(states));
  }
  void reset() override { matrix_.reset(); }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Numbers>(matrix_.options());
  }
  std::string name() const override { return matrix_.name(); }
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override {
    const at::Tensor cells = matrix_.matrix(states).to(at::kDouble).flatten();
    for (std::int64_t i = 0; i < cells.numel(); ++i) {
      to.value(std::to_string(i), cells[i].item<double>());
    }
  }

 private:
  ConfusionMatrix matrix_;
};

}  // namespace

TEST_CASE("confusion matrices agree with torchmetrics for every task and share",
          "[metrics][golden]") {
  check_tasks_against_torchmetrics(
      "ConfusionMatrix", [](Task task, const torchmetrics::Json& args) {
        using torchmetrics::get;
        const std::map<std::string, MatrixShare> shares{{"", MatrixShare::none},
                                                        {"true", MatrixShare::targets},
                                                        {"pred", MatrixShare::predictions},
                                                        {"all", MatrixShare::all}};
        return Numbers{{.task = task,
                        .num_classes = get(args, "num_classes", std::int64_t{0}),
                        .num_labels = get(args, "num_labels", std::int64_t{0}),
                        .threshold = get(args, "threshold", 0.5),
                        .normalize = shares.at(get(args, "normalize", std::string())),
                        .ignore_index = torchmetrics::ignored(args)}};
      });
}

TEST_CASE("a confusion matrix is reported as a table, with the target class in front",
          "[metrics]") {
  ConfusionMatrix metric{{.num_classes = 3}};
  const auto table = [&] { return torchmetrics::Reported(metric, metric.states()); };
  CHECK(table().rows == Cells{{"0", "0", "0", "0"}, {"1", "0", "0", "0"}, {"2", "0", "0", "0"}});
  metric.update(at::tensor({0, 1, 1, 5}, at::kLong), at::tensor({0, 1, 2, 2}, at::kLong));
  CHECK(table().columns == std::vector<std::string>{"target", "0", "1", "2"});
  CHECK(table().rows == Cells{{"0", "1", "0", "0"}, {"1", "0", "1", "0"}, {"2", "0", "1", "0"}});
  CHECK(table().values.empty());
  CHECK(metric.name() == "MulticlassConfusionMatrix");
  CHECK(metric.compute() == 2.0 / 3.0);
  CHECK(metric.matrix().sizes() == at::IntArrayRef({3, 3}));

  ConfusionMatrix labels{
      {.task = Task::multilabel, .num_labels = 2, .normalize = MatrixShare::targets}};
  labels.update(at::tensor({1, 0, 1, 0}, at::kLong).view({2, 2}),
                at::tensor({1, 0, 0, 1}, at::kLong).view({2, 2}));
  const torchmetrics::Reported reported(labels, labels.states());
  CHECK(reported.columns == std::vector<std::string>{"label", "target", "0", "1"});
  CHECK(reported.rows == Cells{{"0", "0", "0.000000", "1.000000"},
                               {"0", "1", "0.000000", "1.000000"},
                               {"1", "0", "1.000000", "0.000000"},
                               {"1", "1", "1.000000", "0.000000"}});
}

TEST_CASE("options and shapes of a confusion matrix that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH(ConfusionMatrix{}, ContainsSubstring("num_classes is 0"));
  CHECK_THROWS_WITH((ConfusionMatrix{{.task = Task::binary, .threshold = -1}}),
                    ContainsSubstring("BinaryConfusionMatrix: threshold is -1"));
  ConfusionMatrix metric{{.num_classes = 3}};
  CHECK_THROWS_WITH(metric.update(at::zeros({2, 4}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("expected 3 classes"));
  CHECK_THROWS_WITH(metric.update(at::zeros({2}), at::zeros({2}, at::kLong)),
                    ContainsSubstring("or classes for both"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
