// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/rotary.hpp>

/// The options of the Llama family, and their config.json; include <tutti/models/llama.hpp>.
namespace tutti::models {

/// The members of the family, which differ in biases, in the normalisation of queries and keys, and
/// in windows.
enum class LlamaType : std::uint8_t {
  llama,    ///< Llama 1, 2, 3: biases by attention_bias and mlp_bias
  mistral,  ///< no biases; a window in every layer
  qwen2,    ///< Qwen 2, 2.5: biases of q, k and v; a window in some layers
  qwen3,    ///< biases by attention_bias; q and k of each head are normalised; windows as Qwen 2
};

constexpr std::string_view to_string(LlamaType type) {
  switch (type) {
    case LlamaType::llama:
      return "llama";
    case LlamaType::mistral:
      return "mistral";
    case LlamaType::qwen2:
      return "qwen2";
    case LlamaType::qwen3:
      return "qwen3";
  }
  return "unknown";
}

/// The shape of a Llama; the defaults are Llama 2 7B's. Fields as in `LlamaConfig`.
struct LlamaOptions {
  LlamaType model_type = LlamaType::llama;
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 0;  ///< 0: num_attention_heads
  std::int64_t head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  nn::Activation hidden_act = nn::Activation::silu;
  double rms_norm_eps = 1e-6;
  std::int64_t max_position_embeddings = 2048;
  nn::RotaryOptions rope_parameters = {};  ///< its max_position_embeddings is the model's
  bool attention_bias = false;             ///< llama, qwen3
  bool mlp_bias = false;                   ///< llama
  double attention_dropout = 0.0;
  std::int64_t sliding_window = 0;            ///< keys that a query sees, not for llama; 0: all
  std::int64_t max_window_layers = 0;         ///< the first layers, which have no window
  std::vector<std::string> layer_types = {};  ///< "full_attention" or "sliding_attention" of each
                                              ///< layer; empty: by max_window_layers
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::optional<std::int64_t> pad_token_id = {};  ///< whose embedding does not learn

  /// What is 0 above, by the rule that stands there.
  [[nodiscard]] std::int64_t key_value_heads() const {
    return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads;
  }
  [[nodiscard]] std::int64_t head_size() const {
    return head_dim > 0 ? head_dim : hidden_size / num_attention_heads;
  }

  /// The longest sequences that the model is made for: max_position_embeddings, or `factor` times
  /// those of the first training where a scaled RoPE makes that more.
  [[nodiscard]] std::int64_t context_length() const;

  /// The biases of q, k and v; of o; and whether q and k are normalised.
  [[nodiscard]] bool has_qkv_bias() const {
    return model_type == LlamaType::qwen2 || attention_bias;
  }
  [[nodiscard]] bool has_output_bias() const { return attention_bias; }
  [[nodiscard]] bool has_qk_norm() const { return model_type == LlamaType::qwen3; }

  /// How many keys a query of that layer sees; 0: all.
  [[nodiscard]] std::int64_t window_of(std::int64_t layer) const {
    if (layer_types.empty()) {
      return layer >= max_window_layers ? sliding_window : 0;
    }
    const std::string& type = layer_types[static_cast<std::size_t>(layer)];
    return type == "sliding_attention" ? sliding_window : 0;
  }

  /// Throws c10::Error (ValueError) for a number that is out of range or does not fit another.
  void validate() const;
};

namespace detail {

/// The options of a config.json of the family. Throws c10::Error (ValueError) for a key that
/// changes the computation and has a value that is not supported.
LlamaOptions llama_options(const PretrainedConfig& config);

/// What config.json says of them: keys that `config` has stay as they are.
void write_llama_options(const LlamaOptions& options, PretrainedConfig& config);

/// `LlamaForCausalLM` and its like.
std::string llama_class(LlamaType type);

}  // namespace detail

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE std::int64_t LlamaOptions::context_length() const {
  const nn::RotaryOptions& rope = rope_parameters;
  const std::int64_t first = rope.original_max_position_embeddings > 0
                                 ? rope.original_max_position_embeddings
                                 : max_position_embeddings;
  const double scaled = static_cast<double>(first) * rope.factor.value_or(1);
  constexpr double most = 1e15;  // a double counts exactly up to here
  return rope.rope_type == nn::RopeType::plain || !(scaled < most)
             ? max_position_embeddings
             : std::max(max_position_embeddings, static_cast<std::int64_t>(scaled));
}

TUTTI_INLINE void LlamaOptions::validate() const {
  const std::string_view type = to_string(model_type);
  for (const auto& [name, value] : {std::pair<const char*, std::int64_t>{"vocab_size", vocab_size},
                                    {"hidden_size", hidden_size},
                                    {"intermediate_size", intermediate_size},
                                    {"num_hidden_layers", num_hidden_layers},
                                    {"num_attention_heads", num_attention_heads},
                                    {"max_position_embeddings", max_position_embeddings}}) {
    TUTTI_CHECK_VALUE(value >= 1, type, ": ", name, " is ", value, ", expected 1 or more");
  }
  TUTTI_CHECK_VALUE(num_key_value_heads >= 0 && num_attention_heads % key_value_heads() == 0, type,
                    ": num_attention_heads is ", num_attention_heads, " and num_key_value_heads ",
                    num_key_value_heads, ", expected a number that divides the heads");
  TUTTI_CHECK_VALUE(head_dim > 0 || hidden_size % num_attention_heads == 0, type,
                    ": hidden_size is ", hidden_size, " and num_attention_heads ",
                    num_attention_heads, ", expected a multiple of the heads, or a head_dim");
  TUTTI_CHECK_VALUE(sliding_window >= 0 && (sliding_window == 0 || model_type != LlamaType::llama),
                    type, ": sliding_window is ", sliding_window,
                    ", expected 0 or more, and 0 for llama, which has no windows");
  TUTTI_CHECK_VALUE(
      layer_types.empty() || static_cast<std::int64_t>(layer_types.size()) == num_hidden_layers,
      type, ": layer_types has ", layer_types.size(), " entries and num_hidden_layers is ",
      num_hidden_layers, ", expected one for each layer");
  for (const std::string& one : layer_types) {
    TUTTI_CHECK_VALUE(one == "full_attention" || one == "sliding_attention", type,
                      ": layer_types has \"", one,
                      "\", expected \"full_attention\" or \"sliding_attention\"");
  }
  TUTTI_CHECK_VALUE(
      !attention_bias || model_type == LlamaType::llama || model_type == LlamaType::qwen3, type,
      ": attention_bias is true, which llama and qwen3 have");
  TUTTI_CHECK_VALUE(!mlp_bias || model_type == LlamaType::llama, type,
                    ": mlp_bias is true, which llama alone has");
  TUTTI_CHECK_VALUE(!pad_token_id || (*pad_token_id >= 0 && *pad_token_id < vocab_size), type,
                    ": pad_token_id is ", pad_token_id.value_or(0), ", expected from 0 to ",
                    vocab_size - 1);
}

}  // namespace tutti::models

namespace tutti::models::detail {

TUTTI_INLINE constexpr std::array llama_types{LlamaType::llama, LlamaType::mistral,
                                              LlamaType::qwen2, LlamaType::qwen3};

TUTTI_INLINE std::string llama_class(LlamaType type) {
  switch (type) {
    case LlamaType::llama:
      return "LlamaForCausalLM";
    case LlamaType::mistral:
      return "MistralForCausalLM";
    case LlamaType::qwen2:
      return "Qwen2ForCausalLM";
    case LlamaType::qwen3:
      break;
  }
  return "Qwen3ForCausalLM";
}

TUTTI_INLINE LlamaType llama_type(const PretrainedConfig& config) {
  const std::string name = config.model_type();
  for (const LlamaType type : llama_types) {
    if (name == to_string(type)) {
      return type;
    }
  }
  config.refuse("model_type", "\"llama\", \"mistral\", \"qwen2\" or \"qwen3\"");
}

TUTTI_INLINE nn::RopeType rope_type(const PretrainedConfig& rope) {
  const char* key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string name = rope.text(key, "default");
  for (const nn::RopeType type :
       {nn::RopeType::plain, nn::RopeType::linear, nn::RopeType::dynamic, nn::RopeType::llama3,
        nn::RopeType::yarn, nn::RopeType::longrope}) {
    if (name == to_string(type)) {
      return type;
    }
  }
  rope.refuse(key, R"("default", "linear", "dynamic", "llama3", "yarn" or "longrope")");
}

TUTTI_INLINE std::optional<double> number_if(const PretrainedConfig& config,
                                             std::string_view name) {
  return config.has(name) ? std::optional(config.number(name, 0)) : std::nullopt;
}

TUTTI_INLINE std::vector<double> numbers(const PretrainedConfig& config, std::string_view name) {
  std::vector<double> out;
  const auto* list = config.find(name);
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    if (!list->is_array() || !list->at(i).is_number() || !std::isfinite(list->at(i).number())) {
      config.refuse(name, "a list of numbers");
    }
    out.push_back(list->at(i).number());
  }
  return out;
}

// Of new files `rope_parameters`; of old ones `rope_scaling`, and `rope_theta` beside it.
TUTTI_INLINE nn::RotaryOptions rotary_options(const PretrainedConfig& config,
                                              std::int64_t max_position_embeddings) {
  constexpr std::array known{"rope_type",        "type",       "rope_theta",
                             "factor",           "truncate",   "original_max_position_embeddings",
                             "low_freq_factor",  "beta_fast",  "partial_rotary_factor",
                             "high_freq_factor", "beta_slow",  "mscale",
                             "mscale_all_dim",   "finetuned",  "attention_factor",
                             "short_factor",     "long_factor"};
  const PretrainedConfig now = config.section("rope_parameters");
  const PretrainedConfig old = config.section("rope_scaling");
  if (!now.values().empty() && !old.values().empty() && !(now == old)) {
    config.refuse("rope_scaling", "the value of rope_parameters, its name of today, or none");
  }
  const PretrainedConfig& rope = now.values().empty() ? old : now;
  for (const auto& [key, value] : rope.values()) {
    const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
    if (!is_known && !value.is_null()) {
      rope.refuse(key, "a parameter of one of the kinds of RoPE that there are");
    }
  }
  nn::RotaryOptions out;
  out.rope_type = rope_type(rope);
  out.rope_theta = rope.number("rope_theta", config.number("rope_theta", out.rope_theta));
  out.partial_rotary_factor =
      rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1));
  out.factor = number_if(rope, "factor");
  out.max_position_embeddings = max_position_embeddings;
  out.original_max_position_embeddings = rope.integer(
      "original_max_position_embeddings", config.integer("original_max_position_embeddings", 0));
  out.low_freq_factor = rope.number("low_freq_factor", out.low_freq_factor);
  out.high_freq_factor = rope.number("high_freq_factor", out.high_freq_factor);
  const auto not_zero = [&rope](const char* name, double otherwise) {
    const double given = rope.number(name, otherwise);
    return given != 0 ? given : otherwise;  // as Transformers reads a 0
  };
  out.beta_fast = not_zero("beta_fast", out.beta_fast);
  out.beta_slow = not_zero("beta_slow", out.beta_slow);
  out.truncate = rope.flag("truncate", true);
  out.mscale = number_if(rope, "mscale");
  out.mscale_all_dim = number_if(rope, "mscale_all_dim");
  out.attention_factor = number_if(rope, "attention_factor");
  out.short_factor = numbers(rope, "short_factor");
  out.long_factor = numbers(rope, "long_factor");
  return out;
}

// What files do not say, each class in Python has a number of its own for.
TUTTI_INLINE LlamaOptions llama_defaults(LlamaType type) {
  LlamaOptions out{.model_type = type};
  if (type == LlamaType::mistral) {
    out.intermediate_size = 14336;
    out.max_position_embeddings = 4096 * 32;
    out.sliding_window = 4096;
  } else if (type == LlamaType::qwen2 || type == LlamaType::qwen3) {
    out.vocab_size = 151936;
    out.intermediate_size = 22016;
    out.max_position_embeddings = 32768;
    out.sliding_window = 4096;
    out.max_window_layers = 28;
    out.head_dim = type == LlamaType::qwen3 ? 128 : 0;
  }
  return out;
}

TUTTI_INLINE void read_windows(const PretrainedConfig& config, LlamaOptions& out) {
  const bool is_qwen = out.model_type == LlamaType::qwen2 || out.model_type == LlamaType::qwen3;
  if (config.is_null("sliding_window") || out.model_type == LlamaType::llama ||
      (is_qwen && !config.flag("use_sliding_window", false))) {
    out.sliding_window = 0;
  } else {
    out.sliding_window = rows_in(config, "sliding_window", out.sliding_window);
  }
  const std::vector<std::string> types = config.texts("layer_types");
  if (is_qwen) {
    out.max_window_layers =
        config.integer_in("max_window_layers", out.max_window_layers, 0, 10'000);
    out.layer_types = types;
    if (out.sliding_window == 0 &&
        std::find(types.begin(), types.end(), "sliding_attention") != types.end()) {
      config.refuse("layer_types",
                    "\"full_attention\" for every layer, since use_sliding_window and "
                    "sliding_window set no window");
    }
    return;
  }
  const char* all = out.sliding_window > 0 ? "sliding_attention" : "full_attention";
  if (std::any_of(types.begin(), types.end(), [&](const auto& type) { return type != all; })) {
    config.refuse("layer_types", "\"" + std::string(all) + "\" for every layer");
  }
}

TUTTI_INLINE LlamaOptions llama_options(const PretrainedConfig& config) {
  refuse_unsupported(config);
  config.only("pretraining_tp", {1});
  LlamaOptions out = llama_defaults(llama_type(config));
  out.vocab_size = rows_in(config, "vocab_size", out.vocab_size);
  out.hidden_size = width_in(config, "hidden_size", out.hidden_size);
  out.intermediate_size = width_in(config, "intermediate_size", out.intermediate_size);
  out.num_hidden_layers = count_in(config, "num_hidden_layers", out.num_hidden_layers);
  out.num_attention_heads = count_in(config, "num_attention_heads", out.num_attention_heads);
  out.num_key_value_heads =
      config.has("num_key_value_heads") ? count_in(config, "num_key_value_heads", 1) : 0;
  out.head_dim = config.has("head_dim") ? width_in(config, "head_dim", 1) : out.head_dim;
  out.hidden_act = activation_of(config, "hidden_act", "silu");
  out.rms_norm_eps = scale_in(config, "rms_norm_eps", out.rms_norm_eps);
  out.max_position_embeddings =
      rows_in(config, "max_position_embeddings", out.max_position_embeddings);
  out.rope_parameters = rotary_options(config, out.max_position_embeddings);
  const bool may_bias = out.model_type == LlamaType::llama || out.model_type == LlamaType::qwen3;
  out.attention_bias = may_bias && config.flag("attention_bias", false);
  out.mlp_bias = out.model_type == LlamaType::llama && config.flag("mlp_bias", false);
  out.attention_dropout = dropout_in(config, "attention_dropout", 0);
  out.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  out.initializer_range = scale_in(config, "initializer_range", out.initializer_range);
  out.pad_token_id = padding_in(config, std::nullopt, out.vocab_size);
  read_windows(config, out);
  out.validate();
  return out;
}

TUTTI_INLINE PretrainedConfig::Json rope_json(const nn::RotaryOptions& rope) {
  using Json = PretrainedConfig::Json;
  const auto list = [](const std::vector<double>& values) {
    return Json(Json::Array(values.begin(), values.end()));
  };
  const nn::RotaryOptions usual;
  Json::Object out{{"rope_type", to_string(rope.rope_type)}, {"rope_theta", rope.rope_theta}};
  const auto add = [&out](const char* name, bool wanted, auto&& value) {
    if (wanted) {
      out.emplace_back(name, Json(value));
    }
  };
  const bool llama3 = rope.rope_type == nn::RopeType::llama3;
  const bool yarn = rope.rope_type == nn::RopeType::yarn;
  add("factor", rope.factor.has_value(), rope.factor.value_or(1));
  add("original_max_position_embeddings", rope.original_max_position_embeddings > 0,
      rope.original_max_position_embeddings);
  add("partial_rotary_factor", rope.partial_rotary_factor != 1, rope.partial_rotary_factor);
  add("low_freq_factor", llama3, rope.low_freq_factor);
  add("high_freq_factor", llama3, rope.high_freq_factor);
  add("beta_fast", yarn && rope.beta_fast != usual.beta_fast, rope.beta_fast);
  add("beta_slow", yarn && rope.beta_slow != usual.beta_slow, rope.beta_slow);
  add("truncate", yarn && !rope.truncate, rope.truncate);
  add("mscale", rope.mscale.has_value(), rope.mscale.value_or(0));
  add("mscale_all_dim", rope.mscale_all_dim.has_value(), rope.mscale_all_dim.value_or(0));
  add("attention_factor", rope.attention_factor.has_value(), rope.attention_factor.value_or(1));
  add("short_factor", !rope.short_factor.empty(), list(rope.short_factor));
  add("long_factor", !rope.long_factor.empty(), list(rope.long_factor));
  return Json(std::move(out));
}

TUTTI_INLINE void write_llama_options(const LlamaOptions& options, PretrainedConfig& config) {
  using Json = PretrainedConfig::Json;
  config.set("architectures", Json::Array{llama_class(options.model_type)});
  config.set("model_type", to_string(options.model_type));
  config.set_default("vocab_size", options.vocab_size);
  config.set_default("hidden_size", options.hidden_size);
  config.set_default("intermediate_size", options.intermediate_size);
  config.set_default("num_hidden_layers", options.num_hidden_layers);
  config.set_default("num_attention_heads", options.num_attention_heads);
  config.set_default("num_key_value_heads", options.key_value_heads());
  config.set_default("head_dim", options.head_size());
  config.set_default("hidden_act", to_string(options.hidden_act));
  config.set_default("rms_norm_eps", options.rms_norm_eps);
  config.set_default("max_position_embeddings", options.max_position_embeddings);
  if (!config.has("rope_theta") && !config.has("rope_scaling")) {
    config.set_default("rope_parameters", rope_json(options.rope_parameters));
  }
  config.set_default("attention_dropout", options.attention_dropout);
  config.set_default("attention_bias", options.attention_bias);
  if (options.model_type == LlamaType::llama) {
    config.set_default("mlp_bias", options.mlp_bias);
  } else {
    config.set_default("sliding_window",
                       options.sliding_window > 0 ? Json(options.sliding_window) : Json(nullptr));
  }
  if (options.model_type == LlamaType::qwen2 || options.model_type == LlamaType::qwen3) {
    config.set_default("use_sliding_window", options.sliding_window > 0);
    config.set_default("max_window_layers", options.max_window_layers);
    if (!options.layer_types.empty()) {
      config.set_default("layer_types",
                         Json::Array(options.layer_types.begin(), options.layer_types.end()));
    }
  }
  config.set_default("tie_word_embeddings", options.tie_word_embeddings);
  config.set_default("initializer_range", options.initializer_range);
  config.set_default("pad_token_id",
                     options.pad_token_id ? Json(*options.pad_token_id) : Json(nullptr));
}

}  // namespace tutti::models::detail

#endif
