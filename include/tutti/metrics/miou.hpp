// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// Mean intersection over union of the classes, in percent, over all pixels of all batches.
///
/// outputs: scores [N, C, d1, ...]. targets: classes [N, d1, ...] of an integer type; pixels with
/// ignore_index count nowhere, nor do classes that occur neither in outputs nor in targets.
/// The value of no pixel is NaN.
/// Source: MosaicML Composer, `composer.metrics.MIoU`.
class MIoU final : public detail::SumMetric {
 public:
  /// num_classes: >= 1. Throws c10::Error (ValueError) otherwise.
  explicit MIoU(std::int64_t num_classes, std::int64_t ignore_index = -1)
      : num_classes_(num_classes), ignore_index_(ignore_index) {
    TUTTI_CHECK_VALUE(num_classes >= 1, "MIoU: num_classes is ", num_classes,
                      ", expected 1 or more");
  }

  [[nodiscard]] std::string name() const override { return "MIoU"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MIoU>(num_classes_, ignore_index_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    const at::Tensor either = states[1].cpu();
    const at::Tensor share = states[0].cpu().to(at::kDouble).div(either);  // 0/0: NaN, left out
    return 100 * share.nanmean().item<double>();
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const override {
    const at::Tensor none = at::zeros({num_classes_}, at::kLong);
    return {none, none};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor wanted = targets.to(at::kLong);
    const at::Tensor predicted = outputs.argmax(1);
    TUTTI_CHECK_VALUE(predicted.sizes() == wanted.sizes(), "MIoU: outputs ", outputs.sizes(),
                      " and targets ", targets.sizes(),
                      ", expected scores [N, C, ...] and classes [N, ...]");
    const at::Tensor counted = wanted.ne(ignore_index_);
    const auto count = [&](const at::Tensor& classes, const at::Tensor& where) {
      return detail::class_counts(classes, where, num_classes_);
    };
    const at::Tensor both = count(wanted, predicted.eq(wanted).logical_and(counted));
    add({both, count(predicted, counted).add(count(wanted, counted)).sub(both)});
  }

  std::int64_t num_classes_;
  std::int64_t ignore_index_;
};

}  // namespace tutti
