// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_weight_norm.h>
#include <ATen/ops/norm_except_dim.h>

/// Layers whose weights are trained as lengths and directions.
///
/// Source: Salimans and Kingma, "Weight Normalization", NeurIPS 2016.
namespace tutti {

namespace functional {

/// `g * v / |v|`, the length taken over all dimensions but `dim`.
///
/// v: [out, ...], floating. g: v's size in `dim`, 1 elsewhere. dim: of v; -1: one length for the
/// whole tensor, and g has one number. Gradients flow to both. Returns v's shape.
/// Source: PyTorch, `torch._weight_norm`.
inline at::Tensor weight_norm(const at::Tensor& v, const at::Tensor& g, std::int64_t dim = 0) {
  return dim == -1 ? v * (g / at::norm_except_dim(v, 2, -1)) : at::_weight_norm(v, g, dim);
}

}  // namespace functional

namespace nn {

/// What the wrappers below have in common.
class WeightNormed : public Substitute {
 public:
  ~WeightNormed() override;
  using Substitute::Substitute;

  /// The trained lengths and directions.
  [[nodiscard]] virtual const at::Tensor& length() const = 0;
  [[nodiscard]] virtual const at::Tensor& direction() const = 0;
};

/// The layer `Layer` with the weight functional::weight_norm(direction, length) in each pass.
///
/// Trained are `bias`, `parametrizations.weight.original0`, the lengths, which begin as the
/// weight's are, and `parametrizations.weight.original1`, the directions, the tensor that was the
/// weight.
template <class Layer>
class WeightNormedImpl : public WeightNormed {
 public:
  using Plain = typename Layer::Impl::Plain;

  /// Over the tensors of `layer`: they stay the same objects. dim: see functional::weight_norm().
  explicit WeightNormedImpl(const Plain& layer, std::int64_t dim = 0)
      : layer_(twin(layer)), dim_(dim) {
    if (layer.bias.defined()) {
      register_parameter("bias", layer.bias, layer.bias.requires_grad());
    }
    auto holder = std::make_shared<torch::nn::Module>("ParametrizationList");
    length_ =
        holder->register_parameter("original0", at::norm_except_dim(layer.weight.detach(), 2, dim),
                                   layer.weight.requires_grad());
    holder->register_parameter("original1", layer.weight, layer.weight.requires_grad());
    auto list = std::make_shared<torch::nn::Module>("ModuleDict");
    list->register_module("weight", std::move(holder));
    register_module("parametrizations", std::move(list));
  }

  /// x: as the layer takes. Returns what it gives.
  at::Tensor forward(const at::Tensor& x) {
    const auto call = layer_->twin();  // the kept layer itself stays as it is
    call->weight = functional::weight_norm(layer_->weight, length_, dim_);
    return call->forward(x);
  }

  [[nodiscard]] const at::Tensor& length() const override { return length_; }
  [[nodiscard]] const at::Tensor& direction() const override { return layer_->weight; }

 private:
  std::shared_ptr<Replaceable<Plain>> layer_;  // not registered: its tensors are, above
  at::Tensor length_;
  std::int64_t dim_;
};

}  // namespace nn

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE WeightNormed::~WeightNormed() = default;

}  // namespace tutti::nn

#endif
