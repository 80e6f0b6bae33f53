#include <tutti/metrics/make_metrics.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

// The sum of everything, times a factor.
struct Sum final : tutti::Metric {
  explicit Sum(double by = 1, std::string as = "Sum") : factor(by), called(std::move(as)) {}
  Sum(Sum&&) = default;
  Sum(const Sum& other) : tutti::Metric(other), factor(other.factor), called(other.called) {
    ++copies;
  }

  using tutti::Metric::compute;
  void update(const at::Tensor& outputs, const at::Tensor&) override {
    sum += outputs.sum().item<double>();
  }
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return factor * states.at(0).item<double>();
  }
  [[nodiscard]] std::vector<at::Tensor> states() const override { return {at::full({}, sum)}; }
  void set_states(std::vector<at::Tensor> states) override { sum = states.at(0).item<double>(); }
  void reset() override { sum = 0; }
  [[nodiscard]] std::unique_ptr<tutti::Metric> clone() const override {
    return std::make_unique<Sum>(factor, called);
  }
  [[nodiscard]] std::string name() const override { return called; }

  double factor;
  std::string called;
  double sum = 0;
  static inline int copies = 0;
};

template <class T>
concept Collected = requires(T metric) { tutti::make_metrics(metric); };
static_assert(Collected<Sum> && !Collected<int> && !Collected<std::shared_ptr<Sum>>);
static_assert(std::is_same_v<decltype(tutti::make_metrics(Sum{})), tutti::Metrics>);

}  // namespace

TEST_CASE("metrics are collected for a model in the order given", "[metrics][law]") {
  const auto metrics = tutti::make_metrics(Sum{1, "A"}, Sum{2, "B"}, Sum{3, "A"});
  REQUIRE(metrics.size() == 3);
  CHECK(metrics[0]->name() == "A");
  CHECK(metrics[1]->name() == "B");
  CHECK(metrics[2]->name() == "A");
  CHECK(tutti::make_metrics().empty());
}

TEST_CASE("collected metrics keep their options, and each use clones them", "[metrics]") {
  const auto metrics = tutti::make_metrics(Sum{2});
  const auto train = metrics[0]->clone();
  const auto eval = metrics[0]->clone();
  train->update(at::ones({3}), {});
  CHECK(train->compute() == 6);
  CHECK(eval->compute() == 0);
  CHECK(metrics[0]->compute() == 0);
}

TEST_CASE("a metric is moved into the collection, a named one copied once", "[metrics]") {
  Sum::copies = 0;
  Sum named{2, "named"};
  CHECK(tutti::make_metrics(Sum{}, Sum{}).size() == 2);
  CHECK(Sum::copies == 0);
  const auto metrics = tutti::make_metrics(named);
  CHECK(Sum::copies == 1);
  named.sum = 7;
  CHECK(metrics[0]->compute() == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
