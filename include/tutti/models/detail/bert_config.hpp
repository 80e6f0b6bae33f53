// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/models/detail/bert_layers.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>

#include <torch/nn/module.h>

/// BERT's config.json and files of weights; include <tutti/models/bert.hpp>.
namespace tutti::models::detail {

/// The options of a config.json. Throws c10::Error (ValueError) for a key that changes the
/// computation and has a value that is not supported.
BertOptions bert_options(const PretrainedConfig& config);

/// What config.json says of them: keys that `config` has stay as they are.
void write_bert_options(const BertOptions& options, std::string_view architecture,
                        PretrainedConfig& config);

/// Labels without names: LABEL_0 and so on.
void write_labels(std::int64_t count, PretrainedConfig& config);

/// How the tensors of a BERT with a head stand in a file.
WeightLayout bert_layout(std::string name, const torch::nn::Module& model);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

TUTTI_INLINE BertOptions bert_options(const PretrainedConfig& config) {
  refuse_unsupported(config);
  config.only("model_type", {"bert"});
  config.only("is_decoder", {false});
  config.only("position_embedding_type", {"absolute"});
  BertOptions out;
  out.vocab_size = rows_in(config, "vocab_size", out.vocab_size);
  out.hidden_size = width_in(config, "hidden_size", out.hidden_size);
  out.num_hidden_layers = count_in(config, "num_hidden_layers", out.num_hidden_layers);
  out.num_attention_heads = count_in(config, "num_attention_heads", out.num_attention_heads);
  out.intermediate_size = width_in(config, "intermediate_size", out.intermediate_size);
  out.hidden_act = activation_of(config, "hidden_act", "gelu");
  out.hidden_dropout_prob = dropout_in(config, "hidden_dropout_prob", out.hidden_dropout_prob);
  out.attention_probs_dropout_prob =
      dropout_in(config, "attention_probs_dropout_prob", out.attention_probs_dropout_prob);
  out.max_position_embeddings =
      rows_in(config, "max_position_embeddings", out.max_position_embeddings);
  out.type_vocab_size = rows_in(config, "type_vocab_size", out.type_vocab_size);
  out.initializer_range = scale_in(config, "initializer_range", out.initializer_range);
  out.layer_norm_eps = scale_in(config, "layer_norm_eps", out.layer_norm_eps);
  out.pad_token_id = padding_in(config, out.pad_token_id, out.vocab_size);
  if (config.has("classifier_dropout")) {
    out.classifier_dropout = dropout_in(config, "classifier_dropout", 0);
  }
  return out;
}

TUTTI_INLINE void write_bert_options(const BertOptions& options, std::string_view architecture,
                                     PretrainedConfig& config) {
  using Json = PretrainedConfig::Json;
  config.set("architectures", Json::Array{architecture});
  config.set("model_type", "bert");
  config.set_default("vocab_size", options.vocab_size);
  config.set_default("hidden_size", options.hidden_size);
  config.set_default("num_hidden_layers", options.num_hidden_layers);
  config.set_default("num_attention_heads", options.num_attention_heads);
  config.set_default("intermediate_size", options.intermediate_size);
  config.set_default("hidden_act", to_string(options.hidden_act));
  config.set_default("hidden_dropout_prob", options.hidden_dropout_prob);
  config.set_default("attention_probs_dropout_prob", options.attention_probs_dropout_prob);
  config.set_default("max_position_embeddings", options.max_position_embeddings);
  config.set_default("type_vocab_size", options.type_vocab_size);
  config.set_default("initializer_range", options.initializer_range);
  config.set_default("layer_norm_eps", options.layer_norm_eps);
  config.set_default("pad_token_id",
                     options.pad_token_id ? Json(*options.pad_token_id) : Json(nullptr));
  config.set_default("classifier_dropout", options.classifier_dropout
                                               ? Json(*options.classifier_dropout)
                                               : Json(nullptr));
  if (!options.tie_word_embeddings) {
    config.set_default("tie_word_embeddings", false);
  }
}

TUTTI_INLINE void write_labels(std::int64_t count, PretrainedConfig& config) {
  using Json = PretrainedConfig::Json;
  Json::Object names, numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    names.emplace_back(number, "LABEL_" + number);
    numbers.emplace_back("LABEL_" + number, i);
  }
  config.set("id2label", std::move(names));
  config.set("label2id", std::move(numbers));
}

TUTTI_INLINE WeightLayout bert_layout(std::string name, const torch::nn::Module& model) {
  WeightLayout layout{.model = std::move(name),
                      .base_prefix = "bert.",
                      .heads = {"cls.", "classifier."},
                      .renamed_ends = {{"LayerNorm.gamma", "LayerNorm.weight"},
                                       {"LayerNorm.beta", "LayerNorm.bias"}}};
  layout.add_module("", model);
  return layout;
}

}  // namespace tutti::models::detail

#endif
