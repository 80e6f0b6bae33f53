// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>
#include <tutti/metrics/detail/task.hpp>
#include <tutti/metrics/detail/top_k.hpp>

namespace tutti {

/// Options of MulticlassAccuracy.
struct AccuracyOptions {
  std::int64_t num_classes = 0;  ///< 0: that of the outputs; needed unless average is micro
  Average average = Average::micro;
  std::int64_t top_k = 1;  ///< right when among the k classes of highest score, of equal ones those
                           ///< of lower number; >= 1
  std::optional<std::int64_t> ignore_index{};  ///< targets left out
  std::string name = "MulticlassAccuracy";     ///< under which it is logged
};

/// The fraction of examples whose class is the one of highest score.
///
/// outputs: scores [N, C, d1, ...], or classes [N, d1, ...] of an integer type. targets: indices
/// [N, d1, ...], or dense [N, C, d1, ...], of which the heaviest class counts.
/// Classes that occur neither in outputs nor in targets do not count in a macro average (with
/// top_k > 1: that do not occur in targets). The value of no example is 0. Average::none reports
/// the value of every class as "<name>_0", ..., and compute() is that of macro. Throws c10::Error
/// (ValueError) for options or shapes that do not fit. Source: torchmetrics,
/// `torchmetrics.classification.MulticlassAccuracy`.
class MulticlassAccuracy final : public detail::SumMetric {
 public:
  explicit MulticlassAccuracy(AccuracyOptions options = {});

  [[nodiscard]] const AccuracyOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MulticlassAccuracy>(options_);
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

 private:
  // The fraction that is right of each class's targets. counts: [3, C]
  static at::Tensor shares(const at::Tensor& counts) {
    return counts[0].div(counts[1].clamp_min(1));
  }

  [[nodiscard]] std::vector<at::Tensor> zeros() const override;

  void take_in(const at::Tensor& outputs, const at::Tensor& given) override;

  static at::Tensor class_of(const at::Tensor& targets, const at::Tensor& outputs) {
    return targets.is_floating_point() && targets.sizes() == outputs.sizes() ? targets.argmax(1)
                                                                             : targets;
  }

  void check_classes(const at::Tensor& outputs, bool scores) const;

  // The common case on the CPU, for which one loop is ten times faster than six operators.
  [[nodiscard]] bool is_plain(const at::Tensor& outputs, const at::Tensor& targets) const;

  template <class T>
  void add_plain(const at::Tensor& outputs, const at::Tensor& targets) {
    const T* row = outputs.const_data_ptr<T>();
    const auto* target = targets.const_data_ptr<std::int64_t>();
    const std::int64_t classes = outputs.size(1);
    std::int64_t right = 0;
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < outputs.size(0); ++i, row += classes) {
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < classes && !std::isnan(row[best]); ++c) {
        best = row[c] <= row[best] ? best : c;  // NaN is the largest, as in argmax
      }
      const bool counted = !options_.ignore_index || target[i] != *options_.ignore_index;
      total += counted ? 1 : 0;
      right += counted && best == target[i] ? 1 : 0;
    }
    at::Tensor counts(at::detail::empty_cpu({2}, at::kLong, /*pin_memory=*/false, std::nullopt));
    auto* out = counts.mutable_data_ptr<std::int64_t>();
    out[0] = right;
    out[1] = total;
    add({counts});
  }

  void add_micro(const at::Tensor& right, const at::Tensor& targets);

  void add_by_class(const at::Tensor& right, const at::Tensor& predicted,
                    const at::Tensor& targets);

  AccuracyOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/metrics/accuracy.inl.hpp>
#endif
