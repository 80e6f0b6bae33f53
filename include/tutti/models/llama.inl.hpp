// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/llama.hpp>

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
  pass.rotary = rotary_.tables(pass.positions, x, pass.length);
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
