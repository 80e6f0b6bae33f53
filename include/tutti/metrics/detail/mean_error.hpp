// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/metrics/detail/regression.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti::detail {

/// The mean over examples of an error of each, by output.
class MeanError : public SumMetric {
 public:
  [[nodiscard]] std::string name() const override { return name_; }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return average_of(values(states), {}, Average::macro);
  }
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override {
    if (num_outputs_ == 1) {
      return to.value(compute(states));
    }
    report_each(values(states), name_, to);
  }

 protected:
  MeanError(std::string name, std::int64_t num_outputs)
      : name_(std::move(name)), num_outputs_(num_outputs) {
    check_num_outputs(name_, num_outputs_);
  }

  /// The errors of differences, [n, num_outputs], double.
  [[nodiscard]] virtual at::Tensor errors(const at::Tensor& difference) const = 0;
  /// The value of a mean error.
  [[nodiscard]] virtual double value_of(double mean) const { return mean; }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({num_outputs_}, at::kDouble), at::zeros({}, at::kLong)};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    check_regression(name_, outputs, targets, num_outputs_);
    const at::Tensor difference =
        regression_rows(outputs, num_outputs_).sub_(regression_rows(targets, num_outputs_));
    add({errors(difference).sum(0), difference.new_empty({}, at::kLong).fill_(difference.size(0))});
  }
  [[nodiscard]] std::vector<double> values(const std::vector<at::Tensor>& states) const {
    const at::Tensor means = states[0].cpu().div(states[1].cpu()).contiguous();
    const auto* mean = means.const_data_ptr<double>();
    std::vector<double> out;
    for (std::int64_t i = 0; i < num_outputs_; ++i) {
      out.push_back(value_of(mean[i]));
    }
    return out;
  }

  std::string name_;
  std::int64_t num_outputs_;
};

}  // namespace tutti::detail
