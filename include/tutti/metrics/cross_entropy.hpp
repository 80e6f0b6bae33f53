// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// The mean of the batches' mean cross entropies.
///
/// outputs: logits [N, C, d1, ...]. targets: indices [N, d1, ...] or dense [N, C, d1, ...]. A last
/// batch that is smaller weighs as much as the others, as in the reference.
/// Source: MosaicML Composer, `composer.metrics.CrossEntropy`.
class CrossEntropy final : public detail::SumMetric {
 public:
  /// ignore_index: index targets left out.
  explicit CrossEntropy(std::int64_t ignore_index = -100) : ignore_index_(ignore_index) {}

  [[nodiscard]] std::string name() const override { return "CrossEntropy"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<CrossEntropy>(ignore_index_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].item<double>() / states[1].item<double>();
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    return {at::zeros({}, at::kDouble), at::zeros({}, at::kLong)};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor loss =
        functional::soft_cross_entropy(detail::full_precision(outputs), targets, {}, ignore_index_)
            .to(at::kDouble);
    add({loss, loss.new_ones({}, at::kLong)});
  }

  std::int64_t ignore_index_;
};

}  // namespace tutti
