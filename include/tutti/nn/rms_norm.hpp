// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/nn/cloneable.h>

/// Root mean square normalisation: what the Llama family has in place of layer normalisation.
namespace tutti::functional {

/// `weight * (x / sqrt(mean(x^2) + eps))`, the mean over the last dimension.
///
/// x: [..., C], floating. weight: [C]; undefined: 1. The quotient is computed in fp32 and cast to
/// x's dtype before it is multiplied by the weight. Returns x's shape.
/// Throws c10::Error when the weight is not [C].
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019; Hugging Face
/// Transformers, `LlamaRMSNorm`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace tutti::functional

namespace tutti::nn {

/// Options of RMSNorm.
struct RMSNormOptions {
  std::int64_t size = 1;  ///< of the last dimension
  double eps = 1e-6;      ///< added to the mean of the squares, inside the root
};

/// What RMSNorm is without a slot.
class PlainRMSNormImpl : public torch::nn::Cloneable<PlainRMSNormImpl> {
 public:
  explicit PlainRMSNormImpl(const RMSNormOptions& with);
  ~PlainRMSNormImpl() override;
  explicit PlainRMSNormImpl(std::int64_t size, double eps = 1e-6);

  void reset() override;

  /// x: [..., size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x) { return functional::rms_norm(x, weight, options.eps); }

  RMSNormOptions options;
  at::Tensor weight;  ///< [size]
};

/// Root mean square normalisation over the last dimension, replaceable; parameter `weight`.
using RMSNormImpl = Replaceable<PlainRMSNormImpl>;
TORCH_MODULE(RMSNorm);

namespace detail {

/// The gradient of rows that the library's own loops normalised.
class RmsNormBackward final : public torch::autograd::Node {
 public:
  RmsNormBackward(const at::Tensor& x, const at::Tensor& weight, at::Tensor inverse, double eps);
  ~RmsNormBackward() override;

  void release_variables() override {
    x_.reset_data();
    weight_.reset_data();
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  torch::autograd::SavedVariable x_, weight_;
  at::Tensor inverse_;
  double eps_;
};

}  // namespace detail

}  // namespace tutti::nn

#if TUTTI_BODIES
#include <tutti/nn/rms_norm.inl.hpp>
#endif
