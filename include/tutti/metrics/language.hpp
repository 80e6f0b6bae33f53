// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

namespace detail {

// The sum of the tokens' losses and their number.
class LanguageLossMetric : public SumMetric {
 public:
  explicit LanguageLossMetric(std::int64_t ignore_index) : ignore_index_(ignore_index) {}

 protected:
  [[nodiscard]] static double mean(const std::vector<at::Tensor>& states) {
    return states[0].item<double>() / states[1].item<double>();
  }
  [[nodiscard]] std::int64_t ignore_index() const { return ignore_index_; }

 private:
  [[nodiscard]] std::vector<at::Tensor> zeros() const final {
    return {at::zeros({}, at::kDouble), at::zeros({}, at::kLong)};
  }

  void take_in(const at::Tensor& outputs, const at::Tensor& targets) final {
    TUTTI_CHECK_VALUE(
        outputs.dim() == targets.dim() + 1 && outputs.numel() == targets.numel() * outputs.size(-1),
        name(), ": outputs ", outputs.sizes(), " and targets ", targets.sizes(),
        ", expected logits [..., vocabulary] and tokens [...]");
    const at::Tensor tokens = targets.reshape({-1});
    const at::Tensor logits = full_precision(outputs.reshape({-1, outputs.size(-1)}));
    const at::Tensor loss =
        at::cross_entropy_loss(logits, tokens, {}, at::Reduction::Sum, ignore_index_);
    add({loss.to(at::kDouble), tokens.ne(ignore_index_).sum()});
  }

  std::int64_t ignore_index_;
};

}  // namespace detail

/// The mean cross entropy of all tokens of all batches, in nats.
///
/// outputs: logits [..., vocabulary]. targets: tokens [...], int64.
/// Source: MosaicML Composer, `composer.metrics.LanguageCrossEntropy`.
class LanguageCrossEntropy final : public detail::LanguageLossMetric {
 public:
  /// ignore_index: tokens left out.
  explicit LanguageCrossEntropy(std::int64_t ignore_index = -100)
      : LanguageLossMetric(ignore_index) {}

  [[nodiscard]] std::string name() const override { return "LanguageCrossEntropy"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<LanguageCrossEntropy>(ignore_index());
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return mean(states);
  }
};

/// The exponential of LanguageCrossEntropy.
/// Source: MosaicML Composer, `composer.metrics.LanguagePerplexity`.
class LanguagePerplexity final : public detail::LanguageLossMetric {
 public:
  /// ignore_index: tokens left out.
  explicit LanguagePerplexity(std::int64_t ignore_index = -100)
      : LanguageLossMetric(ignore_index) {}

  [[nodiscard]] std::string name() const override { return "LanguagePerplexity"; }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<LanguagePerplexity>(ignore_index());
  }

  using SumMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return std::exp(mean(states));
  }
};

}  // namespace tutti
