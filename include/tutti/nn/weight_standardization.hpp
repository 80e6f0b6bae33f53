// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/ops/layer_norm.h>

/// Convolutions whose weights are normalised in every pass.
///
/// Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and Weight
/// Standardization", 2019.
namespace tutti {

namespace functional {

/// Shifts and scales the weights of each output channel to mean 0 and variance 1:
/// `(w - mean) / sqrt(var + 1e-10)`.
///
/// w: [out, ...], floating, at least two numbers per channel. Gradients flow through mean and
/// variance. Returns w's shape.
inline at::Tensor standardize_weights(const at::Tensor& w) {
  const at::Tensor rows = w.flatten(1);  // (out, fan-in); one kernel where the formula takes five
  return at::layer_norm(rows, {rows.size(1)}, {}, {}, 1e-10)
      .view(w.sizes())
      .contiguous(w.suggest_memory_format());
}

}  // namespace functional

namespace nn {

/// What the wrappers below have in common.
class WeightStandardized : public Substitute {
 public:
  ~WeightStandardized() override;
  using Substitute::Substitute;

  /// The trained weight, as it is.
  [[nodiscard]] virtual const at::Tensor& original() const = 0;
};

/// The convolution `Layer` with functional::standardize_weights() before each pass.
///
/// The trained tensors are those of the old layer, under the names `bias` and
/// `parametrizations.weight.original`.
template <class Layer>
class WeightStandardizedImpl : public WeightStandardized {
 public:
  using Plain = typename Layer::Impl::Plain;

  /// Over the tensors of `layer`: they stay the same objects.
  explicit WeightStandardizedImpl(const Plain& layer) : layer_(twin(layer)) {
    if (layer.bias.defined()) {
      register_parameter("bias", layer.bias, layer.bias.requires_grad());
    }
    auto holder = std::make_shared<torch::nn::Module>("ParametrizationList");
    holder->register_parameter("original", layer.weight, layer.weight.requires_grad());
    auto list = std::make_shared<torch::nn::Module>("ModuleDict");
    list->register_module("weight", std::move(holder));
    register_module("parametrizations", std::move(list));
  }

  /// x: as the convolution takes. Returns what it gives.
  at::Tensor forward(const at::Tensor& x) {
    const auto call = layer_->twin();  // the kept layer itself stays as it is
    call->weight = functional::standardize_weights(layer_->weight);
    return call->forward(x);
  }

  [[nodiscard]] const at::Tensor& original() const override { return layer_->weight; }

 private:
  std::shared_ptr<Replaceable<Plain>> layer_;  // not registered: its tensors are, above
};

/// The convolutions with standardized weights that WeightStandardization puts in.
using WeightStandardizedConv1d = WeightStandardizedImpl<Conv1d>;
using WeightStandardizedConv2d = WeightStandardizedImpl<Conv2d>;
using WeightStandardizedConv3d = WeightStandardizedImpl<Conv3d>;

}  // namespace nn

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE WeightStandardized::~WeightStandardized() = default;

}  // namespace tutti::nn

#endif
