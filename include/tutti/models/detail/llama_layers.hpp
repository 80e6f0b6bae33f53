// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tutti/config.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/models/detail/llama_config.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/rms_norm.hpp>

#include <torch/nn/cloneable.h>

/// The parts of a Llama; include <tutti/models/llama.hpp>.
namespace tutti::models {

/// Causal attention of a layer: fewer heads of keys than of queries, both turned by their position.
class LlamaAttentionImpl : public torch::nn::Cloneable<LlamaAttentionImpl>,
                           public nn::HeadedAttention {
 public:
  /// layer: which one it is, from 0.
  LlamaAttentionImpl(const LlamaOptions& options, std::int64_t layer);
  ~LlamaAttentionImpl() override;
  void reset() override;

  /// x: [N, T, hidden_size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x, const detail::CausalPass& pass);

  nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  nn::RMSNorm q_norm{nullptr}, k_norm{nullptr};  ///< of each head; qwen3, else empty
  nn::Dropout dropout{nullptr};                  ///< empty at an attention_dropout of 0

 private:
  LlamaOptions options_;
  std::int64_t layer_;
};
TORCH_MODULE(LlamaAttention);

/// The feed-forward half of a layer, SwiGLU: `down(act(gate(x)) * up(x))`.
class LlamaMLPImpl : public torch::nn::Cloneable<LlamaMLPImpl> {
 public:
  explicit LlamaMLPImpl(const LlamaOptions& options);
  ~LlamaMLPImpl() override;
  void reset() override;

  /// x: [N, T, hidden_size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x);

  nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};

 private:
  LlamaOptions options_;
};
TORCH_MODULE(LlamaMLP);

/// One layer: attention, then feed-forward, each on the normalised input and added to it.
class LlamaDecoderLayerImpl : public torch::nn::Cloneable<LlamaDecoderLayerImpl>, public nn::Block {
 public:
  LlamaDecoderLayerImpl(const LlamaOptions& options, std::int64_t layer);
  ~LlamaDecoderLayerImpl() override;
  void reset() override;

  /// x: [N, T, hidden_size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x, const detail::CausalPass& pass);

  LlamaAttention self_attn{nullptr};
  LlamaMLP mlp{nullptr};
  nn::RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};

 private:
  LlamaOptions options_;
  std::int64_t layer_;
};
TORCH_MODULE(LlamaDecoderLayer);

}  // namespace tutti::models

#if TUTTI_BODIES

#include <tutti/nn/activation.hpp>
#include <tutti/nn/rotary.hpp>
#include <tutti/nn/swiglu.hpp>

namespace tutti::models {

TUTTI_INLINE LlamaAttentionImpl::LlamaAttentionImpl(const LlamaOptions& options, std::int64_t layer)
    : nn::HeadedAttention({.heads = options.num_attention_heads,
                           .causal = true,
                           .key_value_heads = options.key_value_heads(),
                           .window = options.window_of(layer)}),
      options_(options),
      layer_(layer) {
  reset();
}
TUTTI_INLINE LlamaAttentionImpl::~LlamaAttentionImpl() = default;

TUTTI_INLINE void LlamaAttentionImpl::reset() {
  const std::int64_t width = options_.hidden_size;
  const std::int64_t size = options_.head_size();
  const std::int64_t own = heads() * size;
  const std::int64_t shared = key_value_heads() * size;
  const bool bias = options_.has_qkv_bias();
  q_proj = register_module("q_proj", detail::linear(width, own, bias));
  k_proj = register_module("k_proj", detail::linear(width, shared, bias));
  v_proj = register_module("v_proj", detail::linear(width, shared, bias));
  o_proj = register_module("o_proj", detail::linear(own, width, options_.has_output_bias()));
  if (options_.has_qk_norm()) {
    const nn::RMSNormOptions norm{.size = size, .eps = options_.rms_norm_eps};
    q_norm = register_module("q_norm", nn::RMSNorm(norm));
    k_norm = register_module("k_norm", nn::RMSNorm(norm));
  }
  if (options_.attention_dropout != 0) {
    dropout = register_module("dropout", nn::Dropout(options_.attention_dropout));
  }
}

TUTTI_INLINE at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x,
                                                    const detail::CausalPass& pass) {
  const auto of_heads = [](const at::Tensor& y, std::int64_t heads) {  // [N, T, heads, D]
    return y.view({y.size(0), y.size(1), heads, y.size(2) / heads});
  };
  at::Tensor q = of_heads(q_proj(x), heads());
  at::Tensor k = of_heads(k_proj(x), key_value_heads());
  if (q_norm) {
    q = q_norm(q);
    k = k_norm(k);
  }
  q = functional::rotate(q, pass.rotary).transpose(1, 2);
  k = functional::rotate(k, pass.rotary).transpose(1, 2);
  at::Tensor v = of_heads(v_proj(x), key_value_heads()).transpose(1, 2);
  if (pass.cache != nullptr) {
    const nn::KeyValues all = pass.cache->append(layer_, k, v, window());
    k = all.keys;
    v = all.values;
  }
  return o_proj(attend(q, k, v, pass.keys, dropout));
}

TUTTI_INLINE LlamaMLPImpl::LlamaMLPImpl(const LlamaOptions& options) : options_(options) {
  reset();
}
TUTTI_INLINE LlamaMLPImpl::~LlamaMLPImpl() = default;

TUTTI_INLINE void LlamaMLPImpl::reset() {
  const std::int64_t width = options_.hidden_size;
  const std::int64_t inner = options_.intermediate_size;
  gate_proj = register_module("gate_proj", detail::linear(width, inner, options_.mlp_bias));
  up_proj = register_module("up_proj", detail::linear(width, inner, options_.mlp_bias));
  down_proj = register_module("down_proj", detail::linear(inner, width, options_.mlp_bias));
}

TUTTI_INLINE at::Tensor LlamaMLPImpl::forward(const at::Tensor& x) {
  const at::Tensor gate = gate_proj(x);
  const at::Tensor up = up_proj(x);
  return down_proj(options_.hidden_act == nn::Activation::silu
                       ? functional::swiglu(gate, up)
                       : nn::activate(options_.hidden_act, gate).mul(up));
}

TUTTI_INLINE LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaOptions& options,
                                                          std::int64_t layer)
    : options_(options), layer_(layer) {
  reset();
}
TUTTI_INLINE LlamaDecoderLayerImpl::~LlamaDecoderLayerImpl() = default;

TUTTI_INLINE void LlamaDecoderLayerImpl::reset() {
  const nn::RMSNormOptions norm{.size = options_.hidden_size, .eps = options_.rms_norm_eps};
  self_attn = register_module("self_attn", LlamaAttention(options_, layer_));
  mlp = register_module("mlp", LlamaMLP(options_));
  input_layernorm = register_module("input_layernorm", nn::RMSNorm(norm));
  post_attention_layernorm = register_module("post_attention_layernorm", nn::RMSNorm(norm));
}

TUTTI_INLINE at::Tensor LlamaDecoderLayerImpl::forward(const at::Tensor& input,
                                                       const detail::CausalPass& pass) {
  const auto run = [this, pass](const at::Tensor& x) {
    const at::Tensor h = x + self_attn(input_layernorm(x), pass);
    return h + mlp(post_attention_layernorm(h));
  };
  return pass.cache == nullptr ? in_block(input, run) : in_unit(input, run);
}

}  // namespace tutti::models

#endif
