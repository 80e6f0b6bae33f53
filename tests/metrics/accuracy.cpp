#include <tutti/metrics/accuracy.hpp>

#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::AccuracyOptions;
using tutti::Average;
using tutti::MulticlassAccuracy;

namespace {
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Scores of which exactly the given classes are the largest.
at::Tensor scores(const std::vector<std::int64_t>& classes, std::int64_t count) {
  return at::one_hot(at::tensor(classes, at::kLong), count).to(at::kFloat);
}
double value(AccuracyOptions options, const at::Tensor& outputs, const at::Tensor& targets) {
  MulticlassAccuracy metric{options};
  metric.update(outputs, targets);
  return metric.compute();
}
at::Tensor indices(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}
}  // namespace

TEST_CASE("accuracy over all examples is the fraction that is right", "[metrics][law]") {
  MulticlassAccuracy metric;
  CHECK(metric.compute() == 0.0);
  metric.update(scores({0, 1, 2, 0}, 3), indices({0, 1, 1, 1}));
  CHECK(metric.compute() == 0.5);
  metric.update(scores({2, 2}, 3), indices({2, 2}));
  CHECK(metric.compute() == 4.0 / 6.0);
  metric.reset();
  CHECK(metric.compute() == 0.0);
}

TEST_CASE("every layout, type and shape of the same examples has the same accuracy",
          "[metrics][law]") {
  at::manual_seed(1);
  const auto x = at::randn({40, 5});
  const auto y = at::randint(0, 5, {40}, at::kLong);
  const double want = x.argmax(1).eq(y).sum().item<double>() / 40;
  CHECK(value({}, x, y) == want);
  CHECK(value({}, x.to(at::kDouble), y) == want);
  CHECK(value({}, x.t().contiguous().t(), y) == want);
  CHECK(value({}, x, y.to(at::kInt)) == want);
  CHECK(value({}, x.argmax(1), y) == want);
  CHECK(value({}, x.view({8, 5, 5}).transpose(1, 2), y.view({8, 5})) == want);
  CHECK(value({}, x, at::one_hot(y, 5).to(at::kFloat)) == want);
  CHECK(value({.num_classes = 5}, x.to(at::kBFloat16).to(at::kFloat), y) ==
        value({.num_classes = 5}, x.to(at::kBFloat16), y));
}

TEST_CASE("a score that is no number is the largest on every path", "[metrics][law]") {
  const auto x = at::tensor({1.0, not_a_number, 3.0, not_a_number, 5.0, 4.0}).view({2, 3});
  const auto y = indices({1, 0});
  CHECK(value({}, x, y) == 1.0);
  CHECK(value({}, x, y.to(at::kInt)) == 1.0);
}

TEST_CASE("ignored targets count nowhere", "[metrics][law]") {
  const AccuracyOptions options{.num_classes = 3, .ignore_index = 9};
  CHECK(value(options, scores({0, 1, 2}, 3), indices({0, 9, 1})) == 0.5);
  CHECK(value(options, scores({0, 1, 2}, 3), indices({0, 9, 1}).to(at::kInt)) == 0.5);
  AccuracyOptions macro = options;
  macro.average = Average::macro;
  // 0: one of one, 1: none of one, 2: was said without being there
  CHECK(value(macro, scores({0, 1, 2}, 3), indices({0, 9, 1})) == 1.0 / 3.0);
}

TEST_CASE("a macro average weighs classes alike, a weighted one by their examples",
          "[metrics][law]") {
  const auto x = scores({0, 0, 0, 1}, 4);
  const auto y = indices({0, 0, 1, 1});
  CHECK(value({.num_classes = 4, .average = Average::macro}, x, y) == 0.75);  // 3 is nowhere
  CHECK(value({.num_classes = 4, .average = Average::weighted}, x, y) == 0.75);
  const auto z = indices({0, 0, 0, 2});
  // 0: all of three, 1: said without being there, 2: missed
  CHECK(value({.num_classes = 4, .average = Average::macro}, x, z) == 1.0 / 3.0);
  CHECK(value({.num_classes = 4, .average = Average::weighted}, x, z) == 0.75);
}

TEST_CASE("top k accuracy asks whether the class is among the k best", "[metrics][law]") {
  const auto x = at::tensor({4.0, 3.0, 2.0, 1.0, 1.0, 2.0, 3.0, 4.0}).view({2, 4});
  const auto y = indices({1, 0});
  CHECK(value({.top_k = 1}, x, y) == 0.0);
  CHECK(value({.top_k = 2}, x, y) == 0.5);
  CHECK(value({.top_k = 4}, x, y) == 1.0);
  CHECK(value({.num_classes = 4, .average = Average::macro, .top_k = 2}, x, y) == 0.5);
}

TEST_CASE("a network that tells no class from another is no better among the top k",
          "[metrics][law]") {
  const auto y = indices({0, 1, 2, 3});
  for (const auto& x : {at::zeros({4, 4}), at::full({4, 4}, not_a_number)}) {
    CHECK(value({.top_k = 1}, x, y) == 0.25);
    CHECK(value({.top_k = 3}, x, y) == 0.75);
    CHECK(value({.top_k = 3}, x.unsqueeze(2).expand({4, 4, 2}), at::stack({y, y}, 1)) == 0.75);
  }
  const auto some = at::tensor({1.0, not_a_number, 3.0, 2.0}).expand({4, 4});
  CHECK(value({.top_k = 2}, some, indices({1, 1, 2, 3})) == 0.75);  // 1 and 2 are the best
  CHECK(value({.top_k = 3}, some, indices({0, 0, 0, 0})) == 0.0);
  CHECK(value({.top_k = 2, .ignore_index = -100}, some, indices({1, -100, 2, 3})) == 2.0 / 3.0);
}

TEST_CASE("states of parts add up to those of the whole, and can be given back",
          "[metrics][law][dist]") {
  const auto x = at::randn({10, 3});
  const auto y = at::randint(0, 3, {10}, at::kLong);
  for (const auto average : {Average::micro, Average::macro}) {
    const AccuracyOptions options{.num_classes = 3, .average = average};
    MulticlassAccuracy whole{options};
    whole.update(x, y);
    MulticlassAccuracy a{options};
    a.update(x.slice(0, 0, 4), y.slice(0, 0, 4));
    const auto b = a.clone();
    CHECK(b->compute() == 0.0);
    b->update(x.slice(0, 4), y.slice(0, 4));
    const auto sum = a.states().at(0) + b->states().at(0);
    CHECK(whole.compute({sum}) == whole.compute());
    a.set_states({sum});
    CHECK(a.compute() == whole.compute());
    CHECK(MulticlassAccuracy{options}.states().at(0).sizes() == sum.sizes());
  }
}

TEST_CASE("states that were given out do not change with later batches", "[metrics][law]") {
  MulticlassAccuracy metric;
  metric.update(scores({0}, 2), indices({0}));
  const auto before = metric.states().at(0);
  metric.update(scores({0}, 2), indices({0}));
  CHECK(before.equal(indices({1, 1})));
}

TEST_CASE("accuracy options and shapes that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH((MulticlassAccuracy{{.average = Average::macro}}),
                    ContainsSubstring("num_classes is 0, expected the number of classes"));
  CHECK_THROWS_WITH((MulticlassAccuracy{{.top_k = 0}}), ContainsSubstring("top_k is 0"));
  CHECK_THROWS_WITH(value({.num_classes = 4}, scores({0}, 3), indices({0})),
                    ContainsSubstring("the outputs [1, 3] have 3 classes, expected 4"));
  CHECK_THROWS_WITH(value({.top_k = 5}, scores({0}, 3), indices({0})),
                    ContainsSubstring("top_k is 5 and the outputs are [1, 3]"));
  CHECK_THROWS_WITH(value({}, scores({0, 1}, 3), indices({0})),
                    ContainsSubstring("outputs [2, 3] and targets [1]"));
}

TEST_CASE("without an average each class is reported, and computed is the macro one",
          "[metrics][law]") {
  struct Report final : tutti::MetricReport {
    std::map<std::string, double, std::less<>> values;
    void value(double value) override { values.emplace("", value); }
    void value(std::string_view name, double value) override { values.emplace(name, value); }
    void table(std::span<const std::string>, std::span<const std::vector<std::string>>) override {}
  } report;
  MulticlassAccuracy metric{{.num_classes = 3, .average = Average::none, .name = "Right"}};
  metric.update(scores({0, 0, 1}, 3), indices({0, 1, 1}));
  metric.report(metric.states(), report);
  CHECK(report.values == std::map<std::string, double, std::less<>>{
                             {"Right_0", 1}, {"Right_1", 0.5}, {"Right_2", 0}});
  CHECK(metric.compute() == 0.75);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
