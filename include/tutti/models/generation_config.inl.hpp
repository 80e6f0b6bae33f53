// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <tutti/models/generation_config.hpp>

namespace tutti::models::detail {

/// Keys that change the text, with the values under which they do not.
TUTTI_INLINE void refuse_generation_keys(const PretrainedConfig& keys) {
  const PretrainedConfig::Json none = PretrainedConfig::Json::Array{};
  for (const char* one : {"num_beams", "num_beam_groups", "num_return_sequences", "typical_p",
                          "encoder_repetition_penalty"}) {
    keys.only(one, {1});
  }
  for (const char* zero :
       {"diversity_penalty", "penalty_alpha", "epsilon_cutoff", "eta_cutoff", "min_length",
        "min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"}) {
    keys.only(zero, {0});
  }
  for (const char* list :
       {"bad_words_ids", "force_words_ids", "constraints", "suppress_tokens",
        "begin_suppress_tokens", "sequence_bias", "exponential_decay_length_penalty",
        "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids", "watermarking_config",
        "dola_layers", "max_time", "top_h", "assistant_early_exit"}) {
    keys.only(list, {none});
  }
  keys.only("guidance_scale", {1});
  keys.only("token_healing", {false});
  keys.only("stop_strings", {none}, "give their tokens as GenerationConfig::stop_sequences");
}

TUTTI_INLINE Maybe<std::int64_t> generation_count(const PretrainedConfig& keys, const char* name) {
  return keys.has(name) ? Maybe<std::int64_t>(keys.integer(name)) : Maybe<std::int64_t>();
}

// Old files say -1 for no token.
TUTTI_INLINE Maybe<std::int64_t> generation_token(const PretrainedConfig& keys, const char* name) {
  const std::optional<std::int64_t> id = keys.token(name);
  return id && *id >= 0 ? Maybe<std::int64_t>(*id) : Maybe<std::int64_t>();
}

/// The options that differ from the defaults, all of them but the seed and the stop sequences.
TUTTI_INLINE PretrainedConfig::Json::Object generation_keys(const GenerationConfig& config) {
  const GenerationConfig plain;
  using Json = PretrainedConfig::Json;
  Json::Object out;
  const auto put = [&out](const char* name, const auto& value, const auto& otherwise) {
    if (value != otherwise) {
      out.emplace_back(name, value);
    }
  };
  const auto put_if = [&out](const char* name, const Maybe<std::int64_t>& value) {
    if (value) {
      out.emplace_back(name, *value);
    }
  };
  put_if("bos_token_id", config.bos_token_id);
  put("do_sample", config.do_sample, plain.do_sample);
  if (config.eos_token_id.size() == 1) {
    out.emplace_back("eos_token_id", config.eos_token_id.front());
  } else if (!config.eos_token_id.empty()) {
    out.emplace_back("eos_token_id",
                     Json::Array(config.eos_token_id.begin(), config.eos_token_id.end()));
  }
  put_if("max_length", config.max_length);
  put_if("max_new_tokens", config.max_new_tokens);
  put("min_p", config.min_p, plain.min_p);
  put_if("pad_token_id", config.pad_token_id);
  put("repetition_penalty", config.repetition_penalty, plain.repetition_penalty);
  put("temperature", config.temperature, plain.temperature);
  put("top_k", config.top_k, plain.top_k);
  put("top_p", config.top_p, plain.top_p);
  return out;
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE GenerationConfig GenerationConfig::from(const PretrainedConfig& keys) {
  detail::refuse_generation_keys(keys);
  GenerationConfig out;
  out.max_new_tokens = detail::generation_count(keys, "max_new_tokens");
  out.max_length = detail::generation_count(keys, "max_length");
  out.do_sample = keys.flag("do_sample", out.do_sample);
  out.repetition_penalty = keys.number("repetition_penalty", out.repetition_penalty);
  out.temperature = keys.number("temperature", out.temperature);
  const auto is_null = [](const auto& member) {
    return member.first == "top_k" && member.second.is_null();
  };
  const auto& all = keys.values();
  const bool no_top_k = std::find_if(all.begin(), all.end(), is_null) != all.end();
  out.top_k = no_top_k ? 0 : keys.integer("top_k", out.top_k);
  out.top_p = keys.number("top_p", out.top_p);
  out.min_p = keys.number("min_p", out.min_p);
  out.eos_token_id = keys.integers("eos_token_id");
  out.pad_token_id = detail::generation_token(keys, "pad_token_id");
  out.bos_token_id = detail::generation_token(keys, "bos_token_id");
  try {
    out.validate();
  } catch (const c10::ValueError& error) {
    TUTTI_CHECK_VALUE(false, keys.origin(), ": ", error.what_without_backtrace());
  }
  return out;
}

TUTTI_INLINE GenerationConfig GenerationConfig::read(const std::string& folder) {
  const std::string path = folder + "/generation_config.json";
  if (::access(path.c_str(), F_OK) != 0) {  // what is no regular file is refused where it is read
    const PretrainedConfig model = PretrainedConfig::read(folder);
    GenerationConfig out;
    out.eos_token_id = model.integers("eos_token_id");
    out.pad_token_id = detail::generation_token(model, "pad_token_id");
    out.bos_token_id = detail::generation_token(model, "bos_token_id");
    return out;
  }
  const tutti::detail::Json json = checkpoint::read_json(path);
  TUTTI_CHECK_VALUE(json.is_object(), "'", path, "' is ", json.kind(), ", expected an object");
  return from(PretrainedConfig(json.object(), "'" + path + "'"));
}

TUTTI_INLINE void GenerationConfig::write(const std::string& folder) const {
  validate();
  checkpoint::write_json(folder + "/generation_config.json",
                         tutti::detail::Json(detail::generation_keys(*this)));
}

TUTTI_INLINE void GenerationConfig::validate() const {
  expect(!max_new_tokens || *max_new_tokens >= 1, "GenerationConfig: max_new_tokens",
         *max_new_tokens, "at least 1");
  expect(!max_length || *max_length >= 1, "GenerationConfig: max_length", *max_length,
         "at least 1");
  expect(repetition_penalty > 0, "GenerationConfig: repetition_penalty", repetition_penalty,
         "more than 0");
  expect(temperature > 0, "GenerationConfig: temperature", temperature,
         "more than 0; for the likeliest token set do_sample to false");
  expect(top_k >= 0, "GenerationConfig: top_k", top_k, "0 or more");
  expect(top_p >= 0 && top_p <= 1, "GenerationConfig: top_p", top_p, "a number from 0 to 1");
  expect(min_p >= 0 && min_p <= 1, "GenerationConfig: min_p", min_p, "a number from 0 to 1");
  expect(!pad_token_id || *pad_token_id >= 0, "GenerationConfig: pad_token_id", *pad_token_id,
         "a token id of 0 or more");
  for (const auto& sequence : stop_sequences) {
    expect(!sequence.empty(),
           "GenerationConfig: one of stop_sequences has no tokens; take it out.");
  }
}

TUTTI_INLINE std::string to_string(const GenerationConfig& config) {
  tutti::detail::Json::Object keys = detail::generation_keys(config);
  if (config.seed) {
    keys.emplace_back("seed", std::to_string(*config.seed));
  }
  return tutti::detail::to_text(keys);
}

}  // namespace tutti::models
