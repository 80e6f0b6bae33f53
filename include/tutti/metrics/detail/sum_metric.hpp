// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/metric.hpp>

namespace tutti::detail {

/// A metric whose states are sums: a concrete one computes what a batch adds and the value of sums.
///
/// Nothing is allocated before the first batch and nothing waits for the device until compute().
class SumMetric : public Metric {
 public:
  [[nodiscard]] std::vector<at::Tensor> states() const final {
    return sums_.empty() ? zeros() : sums_;
  }
  void set_states(std::vector<at::Tensor> states) final {
    const std::size_t expected = zeros().size();
    TUTTI_CHECK(states.size() == expected, name(), ": ", states.size(), " states were given, ",
                "expected ", expected);
    sums_ = std::move(states);
  }
  void reset() final { sums_.clear(); }
  void update(const at::Tensor& outputs, const at::Tensor& targets) final {
    const c10::AutoGradMode no_grad(false);
    take_in(outputs, targets);
  }

  using Metric::compute;

 protected:
  /// What a batch adds to every state; calls add() once.
  virtual void take_in(const at::Tensor& outputs, const at::Tensor& targets) = 0;

  /// The states of no batch, on the CPU.
  [[nodiscard]] virtual std::vector<at::Tensor> zeros() const = 0;

  void add(std::initializer_list<at::Tensor> parts) {
    if (sums_.empty()) {
      sums_.assign(parts);
      return;
    }
    auto sum = sums_.begin();
    for (const at::Tensor& part : parts) {
      *sum = sum->add(part);  // not in place: who asked for the states may still hold them
      ++sum;
    }
  }

 private:
  std::vector<at::Tensor> sums_;
};

/// Logits in a type whose sums and means are exact enough: half precision becomes fp32.
inline at::Tensor full_precision(const at::Tensor& logits) {
  const bool half = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
  return half ? logits.to(at::kFloat) : logits;
}

/// How often each of 0..classes-1 occurs: int64 [classes]. Other numbers, and places where
/// `counted` is false, count nowhere.
inline at::Tensor class_counts(const at::Tensor& numbers, const at::Tensor& counted,
                               std::int64_t classes) {
  const at::Tensor valid = numbers.ge(0).logical_and_(numbers.lt(classes)).logical_and_(counted);
  const at::Tensor bin = numbers.masked_fill(valid.logical_not(), classes).flatten();
  const at::Tensor bins =
      bin.new_zeros({classes + 1}).scatter_add_(0, bin, bin.new_ones({1}).expand_as(bin));
  return bins.narrow(0, 0, classes);
}

}  // namespace tutti::detail
