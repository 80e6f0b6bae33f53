// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <tutti/algorithms/detail/saved_modules.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/nn/module_names.hpp>

/// adapter_config.json, of PEFT, and the options of LoRA, which stand in another header.
namespace tutti::detail {

// A number as Python writes it: one without a fraction is an integer.
Json python_number(double value);

template <class T>
Json list_or_null(const std::vector<T>& values) {
  return values.empty() ? Json() : Json(Json::Array(values.begin(), values.end()));
}

inline Json modules_of(const surgery::ModuleNames& names) {
  return names.is_expression() ? Json(names.names().front()) : list_or_null(names.names());
}

// What adapter_config.json says of the options. transposed: some adapter stands beside a
// TransposedLinear.
template <class Options>
Json::Object adapter_keys(const Options& lora, bool transposed) {
  using Bias = std::remove_cvref_t<decltype(lora.bias)>;
  Json::Object ranks;
  for (const auto& [pattern, rank] : lora.rank_pattern) {
    ranks.emplace_back(pattern, rank);
  }
  Json::Object alphas;
  for (const auto& [pattern, alpha] : lora.alpha_pattern) {
    alphas.emplace_back(pattern, python_number(alpha));
  }
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  const char* bias = lora.bias == Bias::none  ? "none"
                     : lora.bias == Bias::all ? "all"
                                              : "lora_only";
  return {{"alpha_pattern", alphas},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", text_or_null(lora.base_model_name_or_path)},
          {"bias", bias},
          {"exclude_modules", modules_of(lora.exclude_modules)},
          {"fan_in_fan_out", transposed},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layers_pattern", list_or_null(lora.layers_pattern)},
          {"layers_to_transform", list_or_null(lora.layers_to_transform)},
          {"lora_alpha", python_number(lora.alpha)},
          {"lora_dropout", lora.lora_dropout},
          {"modules_to_save", list_or_null(saved_modules(lora))},
          {"peft_type", "LORA"},
          {"r", lora.r},
          {"rank_pattern", ranks},
          {"revision", nullptr},
          {"target_modules", modules_of(lora.target_modules)},
          {"task_type", text_or_null(lora.task_type)},
          {"use_dora", lora.use_dora},
          {"use_rslora", lora.use_rslora}};
}

template <class Options>
Options lora_of(const models::PretrainedConfig& keys);

// adapter_config.json. Keys of the file that the options were read from stay, as it has them, where
// they say the same.
template <class Options>
Json adapter_config(const Options& lora, bool transposed) {
  const Json::Object says = adapter_keys(lora, transposed);
  if (lora.source_config.values().empty()) {
    return says;
  }
  models::PretrainedConfig out = lora.source_config;
  const Json said(adapter_keys(lora_of<Options>(out), transposed));
  for (const auto& [key, value] : says) {
    const bool is_there = out.has(key) || out.is_null(key);
    const bool is_option = key != "inference_mode";  // which is not read
    if (!is_there || !is_option || said[key] != value) {
      out.set(key, value);
    }
  }
  return out.values();
}

// Refuses what changes the computation and is not here.
void refuse_adapter_keys(const models::PretrainedConfig& keys);

std::vector<std::string> texts_of(const models::PretrainedConfig& keys, const char* name);

inline surgery::ModuleNames names_of(const models::PretrainedConfig& keys, const char* name) {
  const Json* value = keys.find(name);
  return value != nullptr && value->is_string() ? surgery::ModuleNames(value->string())
                                                : surgery::ModuleNames(keys.texts(name));
}

// The options in adapter_config.json.
template <class Options>
Options lora_of(const models::PretrainedConfig& keys) {
  refuse_adapter_keys(keys);
  Options out;
  using Bias = decltype(out.bias);
  out.r = keys.integer("r", 8);
  out.alpha = keys.number("lora_alpha", 8);
  out.target_modules = names_of(keys, "target_modules");
  out.exclude_modules = names_of(keys, "exclude_modules");
  out.lora_dropout = keys.number("lora_dropout", 0);
  out.use_rslora = keys.flag("use_rslora", false);
  out.use_dora = keys.flag("use_dora", false);
  const std::string bias = keys.text("bias", "none");
  out.bias = bias == "all" ? Bias::all : bias == "none" ? Bias::none : Bias::lora_only;
  out.modules_to_save = texts_of(keys, "modules_to_save");
  out.layers_to_transform = keys.integers("layers_to_transform");
  out.layers_pattern = texts_of(keys, "layers_pattern");
  const models::PretrainedConfig ranks = keys.section("rank_pattern");
  for (const auto& [pattern, rank] : ranks.values()) {
    out.rank_pattern.emplace_back(pattern, ranks.integer(pattern));
  }
  const models::PretrainedConfig alphas = keys.section("alpha_pattern");
  for (const auto& [pattern, alpha] : alphas.values()) {
    out.alpha_pattern.emplace_back(pattern, alphas.number(pattern, 0));
  }
  out.task_type = keys.text("task_type", "");
  out.base_model_name_or_path = keys.text("base_model_name_or_path", "");
  out.source_config = keys;
  return out;
}

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE Json python_number(double value) {
  constexpr double exact = 1e15;
  return std::trunc(value) == value && std::abs(value) < exact
             ? Json(static_cast<std::int64_t>(value))
             : Json(value);
}

TUTTI_INLINE void refuse_adapter_keys(const models::PretrainedConfig& keys) {
  keys.only("peft_type", {"LORA"});
  keys.only("bias", {"none", "all", "lora_only"});
  keys.only("init_lora_weights", {true, false, "gaussian", "eva", "orthogonal"},
            "other ways to begin change the base model; convert the adapter when it is saved");
  for (const char* flag :
       {"use_qalora", "lora_bias", "use_bdlora", "ensure_weight_tying", "runtime_config"}) {
    keys.only(flag, {false, Json::Object()});
  }
  for (const char* unset : {"layer_replication", "trainable_token_indices", "target_parameters",
                            "alora_invocation_tokens", "megatron_config", "arrow_config",
                            "kasa_config", "monteclora_config", "velora_config"}) {
    keys.only(unset, {Json::Array(), Json::Object()});
  }
}

TUTTI_INLINE std::vector<std::string> texts_of(const models::PretrainedConfig& keys,
                                               const char* name) {
  const Json* value = keys.find(name);
  return value != nullptr && value->is_string() ? std::vector<std::string>{value->string()}
                                                : keys.texts(name);
}

}  // namespace tutti::detail

#endif
