// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/metric.hpp>
#include <tutti/core/model.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/metrics/make_metrics.hpp>

#include "support/tiny.hpp"

namespace tutti_test {

/// A network with the mean of its loss over all examples as the metric MSE.
struct Measured : tiny::Net {
  using tiny::Net::Net;

  [[nodiscard]] tutti::Metrics metrics(bool /*is_train*/) const {
    return tutti::make_metrics(tutti::LossMetric(error, "MSE"));
  }
  static at::Tensor error(const at::Tensor& outputs, const at::Tensor& targets) {
    return (outputs - targets).pow(2).mean();
  }
  void update_metric(const tutti::Batch& batch, const tutti::Outputs& outputs,
                     tutti::Metric& metric) {
    metric.update(outputs.tensor(), batch.targets());
  }
};

}  // namespace tutti_test
