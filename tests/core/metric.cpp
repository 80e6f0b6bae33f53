#include <tutti/core/metric.hpp>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

// The share of outputs above their targets: the least that a metric of a user's own needs.
class Above final : public tutti::Metric {
 public:
  void update(const at::Tensor& outputs, const at::Tensor& targets) override {
    above_ = above_.add(outputs.gt(targets).sum());
    count_ = count_.add(targets.numel());
  }
  double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].item<double>() / states[1].item<double>();
  }
  std::vector<at::Tensor> states() const override { return {above_, count_}; }
  void set_states(std::vector<at::Tensor> states) override {
    above_ = states[0];
    count_ = states[1];
  }
  void reset() override { set_states({at::zeros({}), at::zeros({})}); }
  std::unique_ptr<tutti::Metric> clone() const override { return std::make_unique<Above>(); }
  std::string name() const override { return "Above"; }

  using tutti::Metric::compute;

 private:
  at::Tensor above_ = at::zeros({});
  at::Tensor count_ = at::zeros({});
};

}  // namespace

TEST_CASE("a metric's value is that of its own counts", "[core][metric]") {
  Above metric;
  metric.update(at::full({4}, 2.0), at::full({4}, 1.0));
  metric.update(at::full({12}, 0.0), at::full({12}, 1.0));
  CHECK(static_cast<const tutti::Metric&>(metric).compute() == 0.25);
}

TEST_CASE("the sum of two metrics' counts gives the value over both, not the mean of values",
          "[core][metric][law]") {
  Above first;
  Above second;
  first.update(at::full({1}, 2.0), at::full({1}, 1.0));
  second.update(at::full({3}, 0.0), at::full({3}, 1.0));
  std::vector<at::Tensor> both = first.states();
  for (std::size_t i = 0; i < both.size(); ++i) {
    both[i] = both[i].add(second.states()[i]);
  }
  CHECK(first.compute(both) == 0.25);
}

TEST_CASE("saved counts restore the value and a clone starts with none", "[core][metric]") {
  Above metric;
  metric.update(at::full({4}, 2.0), at::full({4}, 1.0));
  Above other;
  other.set_states(metric.states());
  CHECK(other.compute() == 1);
  CHECK(metric.clone()->states()[1].item<double>() == 0);
  metric.reset();
  CHECK(metric.states()[1].item<double>() == 0);
}

TEST_CASE("a metric that says nothing else adds up over ranks and reports its one value",
          "[core][metric]") {
  struct Report final : tutti::MetricReport {
    std::vector<double> values;
    int others = 0;
    void value(double value) override { values.push_back(value); }
    void value(std::string_view, double) override { ++others; }
    void table(std::span<const std::string>, std::span<const std::vector<std::string>>) override {
      ++others;
    }
  } report;
  Above metric;
  metric.update(at::full({4}, 2.0), at::full({4}, 1.0));
  CHECK(metric.reduction(0) == tutti::StateReduction::sum);
  metric.report(metric.states(), report);
  CHECK(report.values == std::vector<double>{1});
  CHECK(report.others == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
