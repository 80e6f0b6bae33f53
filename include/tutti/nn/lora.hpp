// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/replacement.hpp>
#include <tutti/nn/slot.hpp>
#include <tutti/nn/transposed_linear.hpp>

#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

/// Layers with a low-rank adapter beside them.
namespace tutti::nn {

/// One adapter: its size and how it is applied.
struct LoraOptions {
  std::int64_t r = 8;     ///< the rank; >= 1
  double scaling = 1;     ///< s, what the product of the factors is multiplied by
  bool use_dora = false;  ///< with a trained length of each output's weights
  double dropout = 0;     ///< of the adapter's input while it trains, in [0, 1); embeddings: none
};

/// What layers with an adapter have in common: `y = base(x) + s * B(A(dropout(x)))`.
///
/// The base is a twin of the layer that it stands for, over the same tensors, as `base_layer`; its
/// W is [out, in] here, whatever way the layer stores it. A is [r, in], B [out, r]. They are fp32,
/// or double where the base is. A starts at random and B with zeros, so that nothing changes at
/// first. With DoRA the layer computes with `W' = m * V / |V|`, `V = W + s * B A`, row by row; m
/// [out] starts as |W|, and |V| takes no part in the gradient.
/// Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022; Liu et al.,
/// "DoRA: Weight-Decomposed Low-Rank Adaptation", ICML 2024.
class LoraLayer : public Substitute {
 public:
  explicit LoraLayer(const LoraOptions& options) : lora_options_(options) {
    TUTTI_CHECK_VALUE(options.r >= 1, "LoRA: r is ", options.r, ", expected at least 1");
    TUTTI_CHECK_VALUE(options.dropout >= 0 && options.dropout < 1, "LoRA: dropout is ",
                      options.dropout, ", expected a number from 0 to below 1");
  }

  [[nodiscard]] const LoraOptions& lora_options() const { return lora_options_; }

  [[nodiscard]] virtual at::Tensor factor_a() const = 0;  ///< the parameter behind A, [r, in]
  [[nodiscard]] virtual at::Tensor factor_b() const = 0;  ///< the parameter behind B, [out, r]
  [[nodiscard]] virtual at::Tensor weight() const = 0;    ///< W, [out, in]: a view of the base's
  [[nodiscard]] virtual at::Tensor bias() const = 0;      ///< of the base; undefined: none

  /// The base, to take this layer's place again.
  [[nodiscard]] virtual surgery::Replacement base() const = 0;

  /// The layer that this one stands for, as long as a parent holds it; set by who replaced it.
  std::weak_ptr<torch::nn::Module> original{};

  /// Tensors of the model as they were before it was trained, by the names that the adapter's file
  /// has for them; set by who trains them.
  std::shared_ptr<const std::map<std::string, at::Tensor>> beside{};

  /// What stores the weight as [in, out].
  [[nodiscard]] virtual bool is_transposed() const { return false; }

  /// It is an embedding.
  [[nodiscard]] virtual bool is_embedding() const { return false; }

  /// m, [out]; undefined without DoRA.
  [[nodiscard]] const at::Tensor& magnitude() const { return magnitude_; }

  /// `s * B A`, [out, in], in fp32 at least.
  [[nodiscard]] at::Tensor delta() const {
    return factor_b().matmul(factor_a()).mul(lora_options_.scaling);
  }

  /// W with the adapter added, as merge() makes it: [out, in], of W's type; the layer stays as it
  /// is. W itself where it is merged already.
  [[nodiscard]] at::Tensor merged_weight() const;

  /// The adapter is part of the base's weight.
  [[nodiscard]] bool is_merged() const { return merged_; }

  /// Adds the adapter to the base's weight: the layer then costs what the base does.
  ///
  /// keep_weight: keeps a copy of the weight, so that unmerge() gives back every bit. Nothing
  /// happens when it is merged already. The sum is computed in fp32 at least.
  void merge(bool keep_weight = false);

  /// Takes the adapter out of the base's weight: by the copy, where one was kept, else by
  /// subtraction, which differs in the last bits. A and B have to be those that were merged.
  void unmerge();

 protected:
  // Once the factors are there: the lengths of the rows of W.
  void make_magnitude() {
    if (lora_options_.use_dora) {
      const c10::AutoGradMode no_grad(false);
      magnitude_ = register_parameter("lora_magnitude_vector", row_norms());
    }
  }

  // m / |V|, [out]; the lengths take no part in gradients.
  [[nodiscard]] at::Tensor magnitude_scale() const {
    const at::Tensor norms = [this] {
      const c10::AutoGradMode no_grad(false);
      return row_norms();
    }();
    return magnitude_.div(norms);
  }

  // The result for the base's outputs `y`, in their type. from_base: W times the adapter's input;
  // adapter: B A times it.
  [[nodiscard]] at::Tensor combined(const at::Tensor& y, const at::Tensor& from_base,
                                    const at::Tensor& adapter) const {
    const double s = lora_options_.scaling;
    if (!lora_options_.use_dora) {
      return y.add(adapter, s).to(y.scalar_type());
    }
    const at::Tensor scale = magnitude_scale();
    return y.add(from_base.mul(scale.sub(1))).add(adapter.mul(scale), s).to(y.scalar_type());
  }

  // The type of the factors beside such a weight.
  static at::TensorOptions factor_type(const at::Tensor& weight) {
    return weight.options().dtype(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }

 private:
  [[nodiscard]] at::Tensor row_norms() const {
    const at::Tensor sum = weight().detach().to(factor_a().scalar_type()).add(delta());
    return sum.norm(2, /*dim=*/1);
  }

  LoraOptions lora_options_;
  at::Tensor magnitude_;  // [out]
  bool merged_ = false;
  at::Tensor kept_;          // the weight before merge(), [out, in]
  at::Tensor merged_scale_;  // m / |V| of merge(), [out]
};

/// A Linear or TransposedLinear with an adapter: parameters `base_layer.weight`, `base_layer.bias`,
/// `lora_A.weight`, `lora_B.weight` and, with DoRA, `lora_magnitude_vector`.
template <class Layer>
class LoraLinearImpl final : public LoraLayer {
 public:
  using Plain = typename Layer::Impl::Plain;

  /// Beside `layer`, whose tensors it shares. Throws as LoraLayer does.
  LoraLinearImpl(const Plain& layer, const LoraOptions& options)
      : LoraLayer(options), base_layer(twin(layer)) {
    register_module("base_layer", base_layer);
    const at::Tensor w = weight();
    lora_A = register_module(
        "lora_A", torch::nn::Linear(torch::nn::LinearOptions(w.size(1), options.r).bias(false)));
    lora_B = register_module(
        "lora_B", torch::nn::Linear(torch::nn::LinearOptions(options.r, w.size(0)).bias(false)));
    torch::nn::init::zeros_(lora_B->weight);
    for (torch::nn::Linear factor : {lora_A, lora_B}) {
      factor->to(w.device(), c10::typeMetaToScalarType(factor_type(w).dtype()));
    }
    make_magnitude();
  }

  /// x: [..., in]. Returns [..., out].
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = base_layer(x);
    if (is_merged()) {
      return y;
    }
    const double p = is_training() ? lora_options().dropout : 0;
    const at::Tensor dropped = p > 0 ? at::dropout(x, p, /*train=*/true) : x;
    at::Tensor from_base;
    if (lora_options().use_dora) {
      from_base = p > 0 ? at::linear(dropped, weight()) : bias().defined() ? y - bias() : y;
    }
    const at::Tensor input = at::autocast::is_autocast_enabled(x.device().type())
                                 ? dropped
                                 : dropped.to(lora_A->weight.scalar_type());
    return combined(y, from_base, lora_B(lora_A(input)));
  }

  [[nodiscard]] at::Tensor factor_a() const override { return lora_A->weight; }
  [[nodiscard]] at::Tensor factor_b() const override { return lora_B->weight; }
  [[nodiscard]] at::Tensor weight() const override {
    return is_transposed() ? base_layer->weight.t() : base_layer->weight;
  }
  [[nodiscard]] at::Tensor bias() const override { return base_layer->bias; }
  [[nodiscard]] surgery::Replacement base() const override { return base_layer; }
  [[nodiscard]] bool is_transposed() const override {
    return std::is_same_v<Layer, TransposedLinear>;
  }

  Layer base_layer;
  torch::nn::Linear lora_A{nullptr}, lora_B{nullptr};
};

/// The adapted layers that LoRA puts in.
using LoraLinear = LoraLinearImpl<Linear>;
using LoraTransposedLinear = LoraLinearImpl<TransposedLinear>;

/// An embedding with an adapter: parameters `base_layer.weight`, `lora_embedding_A` [r, V],
/// `lora_embedding_B` [C, r] and, with DoRA, `lora_magnitude_vector` [C]. Here A starts with zeros.
class LoraEmbeddingImpl final : public LoraLayer {
 public:
  /// Beside `layer`, whose table it shares. Throws as LoraLayer does, and c10::NotImplementedError
  /// for an embedding with max_norm, which changes its table itself.
  LoraEmbeddingImpl(const torch::nn::EmbeddingImpl& layer, const LoraOptions& options);

  /// x: indices [...]. Returns [..., C].
  at::Tensor forward(const at::Tensor& x);

  [[nodiscard]] at::Tensor factor_a() const override { return lora_embedding_A; }
  [[nodiscard]] at::Tensor factor_b() const override { return lora_embedding_B; }
  [[nodiscard]] at::Tensor weight() const override { return base_layer->weight.t(); }
  [[nodiscard]] at::Tensor bias() const override { return {}; }
  [[nodiscard]] surgery::Replacement base() const override { return base_layer; }
  [[nodiscard]] bool is_transposed() const override { return true; }
  [[nodiscard]] bool is_embedding() const override { return true; }

  Embedding base_layer;
  at::Tensor lora_embedding_A;  ///< [r, V]
  at::Tensor lora_embedding_B;  ///< [C, r]
};

}  // namespace tutti::nn

#if TUTTI_BODIES
#include <tutti/nn/lora.inl.hpp>
#endif
