// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/lora.hpp>

namespace tutti::nn {

TUTTI_INLINE at::Tensor LoraLayer::merged_weight() const {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor w = weight().detach();
  if (merged_) {
    return w;
  }
  at::Tensor sum = delta();
  sum = w.to(sum.scalar_type()).add(sum);
  if (lora_options_.use_dora) {
    sum = sum.mul(magnitude_scale().unsqueeze(1));
  }
  return sum.to(w.scalar_type());
}

TUTTI_INLINE void LoraLayer::merge(bool keep_weight) {
  if (merged_) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const at::Tensor w = weight();
  const at::Tensor sum = merged_weight();
  if (lora_options_.use_dora) {
    merged_scale_ = magnitude_scale();
  }
  kept_ = keep_weight ? w.clone() : at::Tensor();
  w.copy_(sum);
  merged_ = true;
}

TUTTI_INLINE void LoraLayer::unmerge() {
  if (!merged_) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const at::Tensor w = weight();
  at::Tensor before = kept_;
  if (!before.defined()) {
    before = w.to(factor_a().scalar_type());
    before = lora_options_.use_dora ? before.div(merged_scale_.unsqueeze(1)) : before;
    before = before.sub(delta());
  }
  w.copy_(before);
  kept_.reset();
  merged_scale_.reset();
  merged_ = false;
}

TUTTI_INLINE LoraEmbeddingImpl::LoraEmbeddingImpl(const torch::nn::EmbeddingImpl& layer,
                                                  const LoraOptions& options)
    : LoraLayer(options), base_layer(twin(layer)) {
  TUTTI_CHECK_NOT_IMPLEMENTED(!layer.options.max_norm().has_value(),
                              "LoRA: the embedding has max_norm ", *layer.options.max_norm(),
                              ", by which it changes its own table; take it out of the targets");
  register_module("base_layer", base_layer);
  const at::Tensor w = weight();
  lora_embedding_A =
      register_parameter("lora_embedding_A", at::zeros({options.r, w.size(1)}, factor_type(w)));
  lora_embedding_B = register_parameter(
      "lora_embedding_B", at::normal(0.0, 1.0, {w.size(0), options.r}).to(factor_type(w)));
  make_magnitude();
}

TUTTI_INLINE at::Tensor LoraEmbeddingImpl::forward(const at::Tensor& x) {
  const at::Tensor y = base_layer(x);
  if (is_merged()) {
    return y;
  }
  const auto padding = base_layer->options.padding_idx().value_or(-1);
  const at::Tensor rows = at::embedding(lora_embedding_A.t(), x, padding,
                                        base_layer->options.scale_grad_by_freq());  // [..., r]
  return combined(y, y, at::linear(rows, lora_embedding_B));
}

}  // namespace tutti::nn
