// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/llama.hpp>
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

namespace tutti::models {

TUTTI_INLINE LlamaModelImpl::LlamaModelImpl(const LlamaOptions& options) : options_(options) {
  options_.validate();
  options_.rope_parameters.max_position_embeddings = options_.max_position_embeddings;
  rotary_ = nn::Rotary(options_.head_size(), options_.rope_parameters);
  reset();
}
TUTTI_INLINE LlamaModelImpl::~LlamaModelImpl() = default;

TUTTI_INLINE void LlamaModelImpl::reset() {
  torch::nn::EmbeddingOptions table(options_.vocab_size, options_.hidden_size);
  if (options_.pad_token_id) {
    table.padding_idx(*options_.pad_token_id);
  }
  embed_tokens = register_module("embed_tokens", nn::Embedding(table));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options_.num_hidden_layers; ++i) {
    layers->push_back(LlamaDecoderLayer(options_, i));
  }
  norm = register_module("norm", nn::RMSNorm(nn::RMSNormOptions{.size = options_.hidden_size,
                                                                .eps = options_.rms_norm_eps}));
  detail::initialize(*this, options_.initializer_range);
}

TUTTI_INLINE at::Tensor LlamaModelImpl::forward(detail::CausalPass pass) {
  at::Tensor x = embed_tokens(pass.ids);
  const bool alike = pass.most >= 0 && !rotary_.depends_on_length(pass.most);
  pass.rotary = rotary_.tables(pass.positions, x, alike ? pass.most : pass.length);
  for (std::size_t i = 0; i < layers->size(); ++i) {
    x = layers->at<LlamaDecoderLayerImpl>(i).forward(x, pass);
  }
  if (pass.cache != nullptr) {
    pass.cache->advance(pass.ids.size(1));
  }
  return norm(x);
}

TUTTI_INLINE LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaOptions& options)
    : options_(options) {
  reset();
}
TUTTI_INLINE LlamaForCausalLMImpl::~LlamaForCausalLMImpl() = default;

TUTTI_INLINE void LlamaForCausalLMImpl::reset() {
  model = register_module("model", LlamaModel(options_));
  if (!options_.tie_word_embeddings) {
    lm_head = register_module("lm_head", detail::linear(options_.hidden_size, options_.vocab_size,
                                                        /*bias=*/false));
    torch::nn::init::normal_(lm_head->weight, 0, options_.initializer_range);
  }
}

TUTTI_INLINE Outputs LlamaForCausalLMImpl::forward(const Batch& batch) {
  return given_logits(
      head(model(detail::causal_pass(detail::causal_input(batch), detail::Count::all, "Llama"))),
      is_training());
}

TUTTI_INLINE at::Tensor LlamaForCausalLMImpl::logits(const CausalInput& input) {
  const at::Tensor x = model(detail::causal_pass(input, detail::Count::unpadded, "Llama"));
  return all_logits(head(input.last_only ? x.slice(1, -1) : x));
}

TUTTI_INLINE nn::KeyValueCache LlamaForCausalLMImpl::make_cache(std::int64_t batch,
                                                                std::int64_t max_length) const {
  return {options_.num_hidden_layers, batch, max_length};
}

TUTTI_INLINE Metrics LlamaForCausalLMImpl::metrics(bool /*train*/) {
  return make_metrics(LanguageCrossEntropy{}, LanguagePerplexity{});
}

TUTTI_INLINE PretrainedConfig LlamaForCausalLMImpl::config() const {
  PretrainedConfig out = source_config;
  detail::write_llama_options(options_, out);
  return out;
}

TUTTI_INLINE WeightLayout LlamaForCausalLMImpl::weight_layout() const {
  WeightLayout layout{.model = detail::llama_class(options_.model_type),
                      .base_prefix = "model.",
                      .heads = {"lm_head.", "score."}};
  layout.add_module("", *this);
  if (options_.tie_word_embeddings) {
    layout.tied = {{"lm_head.weight", "model.embed_tokens.weight"}};
  }
  return layout;
}

TUTTI_INLINE at::Tensor LlamaForCausalLMImpl::head(const at::Tensor& x) {
  if (lm_head) {
    return spread() ? token_logits(x, lm_head->weight) : lm_head(x);
  }
  return token_logits(x, model->embed_tokens->weight);
}

}  // namespace tutti::models
