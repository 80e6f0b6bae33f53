// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/make_metrics.hpp>
#include <tutti/models/gpt2.hpp>

namespace tutti::models::detail {

TUTTI_INLINE std::optional<double> gpt2_scale(const GPT2Options& options, std::int64_t layer) {
  if (options.scale_attn_weights && !options.scale_attn_by_inverse_layer_idx) {
    return std::nullopt;
  }
  const auto size = static_cast<double>(options.n_embd / options.n_head);
  return (options.scale_attn_weights ? 1 / std::sqrt(size) : 1) /
         (options.scale_attn_by_inverse_layer_idx ? static_cast<double>(layer + 1) : 1);
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE void GPT2AttentionImpl::reset() {
  const std::int64_t width = options_.n_embd;
  c_attn = register_module("c_attn", nn::TransposedLinear(width, 3 * width));
  c_proj = register_module("c_proj", nn::TransposedLinear(width, width));
  attn_dropout = register_module("attn_dropout", nn::Dropout(options_.attn_pdrop));
  resid_dropout = register_module("resid_dropout", nn::Dropout(options_.resid_pdrop));
}

TUTTI_INLINE std::vector<at::Tensor> GPT2AttentionImpl::heads_of(const at::Tensor& x) {
  std::vector<at::Tensor> parts = c_attn(x).chunk(3, -1);
  for (at::Tensor& part : parts) {
    part = split_heads(part);
  }
  return parts;
}

TUTTI_INLINE at::Tensor GPT2AttentionImpl::forward(const at::Tensor& x,
                                                   const detail::CausalPass& pass) {
  const auto qkv = heads_of(x);
  nn::KeyValues seen{qkv[1], qkv[2]};
  if (pass.cache != nullptr) {
    seen = pass.cache->append(layer_, seen.keys, seen.values);
  }
  return resid_dropout(c_proj(attend(qkv[0], seen.keys, seen.values, pass.keys, attn_dropout)));
}

TUTTI_INLINE void GPT2MLPImpl::reset() {
  const std::int64_t inner = options_.n_inner > 0 ? options_.n_inner : 4 * options_.n_embd;
  c_fc = register_module("c_fc", nn::TransposedLinear(options_.n_embd, inner));
  c_proj = register_module("c_proj", nn::TransposedLinear(inner, options_.n_embd));
  dropout = register_module("dropout", nn::Dropout(options_.resid_pdrop));
}

TUTTI_INLINE void GPT2BlockImpl::reset() {
  const auto norm = torch::nn::LayerNormOptions({options_.n_embd}).eps(options_.layer_norm_epsilon);
  ln_1 = register_module("ln_1", nn::LayerNorm(norm));
  attn = register_module("attn", GPT2Attention(options_, layer_));
  ln_2 = register_module("ln_2", nn::LayerNorm(norm));
  mlp = register_module("mlp", GPT2MLP(options_));
}

TUTTI_INLINE at::Tensor GPT2BlockImpl::forward(const at::Tensor& input,
                                               const detail::CausalPass& pass) {
  const auto run = [this, pass](const at::Tensor& x) {
    const at::Tensor h = x + attn(ln_1(x), pass);
    return h + mlp(ln_2(h));
  };
  return pass.cache == nullptr ? in_block(input, run) : in_unit(input, run);
}

TUTTI_INLINE void GPT2ModelImpl::reset() {
  wte = register_module("wte", nn::Embedding(options_.vocab_size, options_.n_embd));
  wpe = register_module("wpe", nn::Embedding(options_.n_positions, options_.n_embd));
  drop = register_module("drop", nn::Dropout(options_.embd_pdrop));
  h = register_module("h", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options_.n_layer; ++i) {
    h->push_back(GPT2Block(options_, i));
  }
  const auto norm = torch::nn::LayerNormOptions({options_.n_embd}).eps(options_.layer_norm_epsilon);
  ln_f = register_module("ln_f", nn::LayerNorm(norm));
  detail::initialize(*this, options_.initializer_range);
  // Every block adds to the stream twice: the sum keeps its size.
  const double range =
      options_.initializer_range / std::sqrt(2.0 * static_cast<double>(options_.n_layer));
  for (std::size_t i = 0; i < h->size(); ++i) {
    GPT2BlockImpl& layer = block(i);
    torch::nn::init::normal_(layer.attn->c_attn->weight, 0, options_.initializer_range);
    torch::nn::init::normal_(layer.attn->c_proj->weight, 0, range);
    torch::nn::init::normal_(layer.mlp->c_fc->weight, 0, options_.initializer_range);
    torch::nn::init::normal_(layer.mlp->c_proj->weight, 0, range);
  }
}

TUTTI_INLINE at::Tensor GPT2ModelImpl::forward(const detail::CausalPass& pass) {
  at::Tensor x = drop(wte(pass.ids) + wpe(pass.positions));
  for (std::size_t i = 0; i < h->size(); ++i) {
    x = block(i).forward(x, pass);
  }
  if (pass.cache != nullptr) {
    pass.cache->advance(pass.ids.size(1));
  }
  return ln_f(x);
}

TUTTI_INLINE void GPT2LMHeadModelImpl::reset() {
  transformer = register_module("transformer", GPT2Model(options_));
  if (!options_.tie_word_embeddings) {
    lm_head = register_module("lm_head", detail::linear(options_.n_embd, options_.vocab_size,
                                                        /*bias=*/false));
    torch::nn::init::normal_(lm_head->weight, 0, options_.initializer_range);
  }
}

TUTTI_INLINE at::Tensor GPT2LMHeadModelImpl::logits(const CausalInput& input) {
  const at::Tensor x = transformer(pass(input, detail::Count::unpadded));
  return all_logits(head(input.last_only ? x.slice(1, -1) : x));
}

TUTTI_INLINE PretrainedConfig GPT2LMHeadModelImpl::config() const {
  PretrainedConfig out = source_config;
  detail::write_gpt2_options(options_, out);
  return out;
}

TUTTI_INLINE WeightLayout GPT2LMHeadModelImpl::weight_layout() const {
  WeightLayout layout{
      .model = "GPT2LMHeadModel", .base_prefix = "transformer.", .heads = {"lm_head.", "score."}};
  layout.add_module("", *this);
  if (options_.tie_word_embeddings) {
    layout.tied = {{"lm_head.weight", "transformer.wte.weight"}};
  }
  return layout;
}

}  // namespace tutti::models

namespace tutti::models {

TUTTI_INLINE GPT2AttentionImpl::~GPT2AttentionImpl() = default;

TUTTI_INLINE GPT2AttentionImpl::GPT2AttentionImpl(const GPT2Options& options, std::int64_t layer)
    : nn::PositionBiased(
          {.heads = options.n_head, .causal = true, .scale = detail::gpt2_scale(options, layer)}),
      options_(options),
      layer_(layer) {
  reset();
}
TUTTI_INLINE GPT2MLPImpl::~GPT2MLPImpl() = default;

TUTTI_INLINE GPT2MLPImpl::GPT2MLPImpl(const GPT2Options& options) : options_(options) {
  reset();
}
TUTTI_INLINE GPT2BlockImpl::~GPT2BlockImpl() = default;

TUTTI_INLINE GPT2BlockImpl::GPT2BlockImpl(const GPT2Options& options, std::int64_t layer)
    : options_(options), layer_(layer) {
  reset();
}
TUTTI_INLINE GPT2ModelImpl::~GPT2ModelImpl() = default;

TUTTI_INLINE GPT2ModelImpl::GPT2ModelImpl(const GPT2Options& options) : options_(options) {
  reset();
}
TUTTI_INLINE GPT2LMHeadModelImpl::~GPT2LMHeadModelImpl() = default;

TUTTI_INLINE Metrics GPT2LMHeadModelImpl::metrics(bool) {
  return make_metrics(LanguageCrossEntropy{}, LanguagePerplexity{});
}

TUTTI_INLINE GPT2LMHeadModelImpl::GPT2LMHeadModelImpl(const GPT2Options& options)
    : options_(options) {
  TUTTI_CHECK_VALUE(options.n_head >= 1 && options.n_embd % options.n_head == 0,
                    "GPT-2: n_embd is ", options.n_embd, " and n_head ", options.n_head,
                    ", expected a width that is a multiple of the heads");
  reset();
}

}  // namespace tutti::models

namespace tutti::models::detail {

TUTTI_INLINE GPT2Options gpt2_options(const PretrainedConfig& config) {
  refuse_unsupported(config);
  config.only("model_type", {"gpt2"});
  config.only("reorder_and_upcast_attn", {false});
  // Transformers takes these names, too, which other models have.
  const auto other_name = [&](std::string_view name, std::string_view own) {
    if (config.has(name) && config.has(own) && config.integer(name) != config.integer(own)) {
      config.refuse(name, "the value of " + std::string(own) + ", of which it is another name");
    }
    return config.has(name) ? name : own;
  };
  GPT2Options out;
  out.vocab_size = rows_in(config, "vocab_size", out.vocab_size);
  out.n_positions = rows_in(config, other_name("max_position_embeddings", "n_positions"),
                            rows_in(config, "n_ctx", out.n_positions));
  out.n_embd = width_in(config, other_name("hidden_size", "n_embd"), out.n_embd);
  out.n_layer = count_in(config, other_name("num_hidden_layers", "n_layer"), out.n_layer);
  out.n_head = count_in(config, other_name("num_attention_heads", "n_head"), out.n_head);
  out.n_inner = config.has("n_inner") ? width_in(config, "n_inner", 1) : 0;
  out.activation_function = activation_of(config, "activation_function", "gelu_new");
  out.embd_pdrop = dropout_in(config, "embd_pdrop", out.embd_pdrop);
  out.attn_pdrop = dropout_in(config, "attn_pdrop", out.attn_pdrop);
  out.resid_pdrop = dropout_in(config, "resid_pdrop", out.resid_pdrop);
  out.layer_norm_epsilon = scale_in(config, "layer_norm_epsilon", out.layer_norm_epsilon);
  out.initializer_range = scale_in(config, "initializer_range", out.initializer_range);
  out.scale_attn_weights = config.flag("scale_attn_weights", true);
  out.scale_attn_by_inverse_layer_idx = config.flag("scale_attn_by_inverse_layer_idx", false);
  out.tie_word_embeddings = config.flag("tie_word_embeddings", true);
  return out;
}

TUTTI_INLINE void write_gpt2_options(const GPT2Options& options, PretrainedConfig& config) {
  using Json = PretrainedConfig::Json;
  config.set("architectures", Json::Array{"GPT2LMHeadModel"});
  config.set("model_type", "gpt2");
  config.set_default("vocab_size", options.vocab_size);
  if (!config.has("n_ctx")) {
    config.set_default("n_positions", options.n_positions);
  }
  config.set_default("n_embd", options.n_embd);
  config.set_default("n_layer", options.n_layer);
  config.set_default("n_head", options.n_head);
  config.set_default("n_inner", options.n_inner > 0 ? Json(options.n_inner) : Json(nullptr));
  config.set_default("activation_function", to_string(options.activation_function));
  config.set_default("embd_pdrop", options.embd_pdrop);
  config.set_default("attn_pdrop", options.attn_pdrop);
  config.set_default("resid_pdrop", options.resid_pdrop);
  config.set_default("layer_norm_epsilon", options.layer_norm_epsilon);
  config.set_default("initializer_range", options.initializer_range);
  config.set_default("scale_attn_weights", options.scale_attn_weights);
  config.set_default("scale_attn_by_inverse_layer_idx", options.scale_attn_by_inverse_layer_idx);
  config.set_default("tie_word_embeddings", options.tie_word_embeddings);
}

}  // namespace tutti::models::detail
