// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/auto_model.hpp>

#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/vision_layout.hpp>
#include <tutti/models/vit.hpp>

namespace tutti::models {

namespace detail {

// The config, as the options change it.
TUTTI_INLINE PretrainedConfig config_of(const std::string& folder,
                                        const FromPretrainedOptions& options) {
  return edited_config(folder, options.edit_config);
}

[[noreturn]] inline void refuse_type(const PretrainedConfig& config, const char* what,
                                     const char* expected) {
  const auto* type = config.find("model_type");
  TUTTI_CHECK_VALUE(false, config.origin(), ": model_type is ",
                    type != nullptr ? tutti::detail::to_text(*type) : "absent",
                    ", of which there is no ", what, "; expected ", expected);
}

template <class M>
AnyModel any_model(const PretrainedConfig& config, const std::string& folder,
                   const FromPretrainedOptions& options) {
  return load_model<M>(config, folder, options).ptr();
}

template <class M>
AnyModel any_classifier(const PretrainedConfig& config, const std::string& folder,
                        const FromPretrainedOptions& options) {
  return Classifier<typename M::ContainedType>(load_model<M>(config, folder, options).ptr());
}

}  // namespace detail

TUTTI_INLINE AnyModel auto_model_for_causal_lm(const std::string& folder,
                                               const FromPretrainedOptions& options) {
  const PretrainedConfig config = detail::config_of(folder, options);
  const std::string type = config.model_type();
  if (type == "gpt2") {
    return detail::any_model<GPT2LMHeadModel>(config, folder, options);
  }
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3") {
    return detail::any_model<LlamaForCausalLM>(config, folder, options);
  }
  detail::refuse_type(config, "causal language model",
                      "\"gpt2\", \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"");
}

TUTTI_INLINE AnyModel auto_model_for_masked_lm(const std::string& folder,
                                               const FromPretrainedOptions& options) {
  const PretrainedConfig config = detail::config_of(folder, options);
  if (config.model_type() == "bert") {
    return detail::any_model<BertForMaskedLM>(config, folder, options);
  }
  detail::refuse_type(config, "masked language model", "\"bert\"");
}

TUTTI_INLINE AnyModel auto_model_for_sequence_classification(const std::string& folder,
                                                             const FromPretrainedOptions& options) {
  const PretrainedConfig config = detail::config_of(folder, options);
  if (config.model_type() == "bert") {
    return detail::any_model<BertForSequenceClassification>(config, folder, options);
  }
  detail::refuse_type(config, "classifier of sequences", "\"bert\"");
}

TUTTI_INLINE AnyModel auto_model_for_image_classification(const std::string& folder,
                                                          const FromPretrainedOptions& options) {
  const PretrainedConfig config = detail::config_of(folder, options);
  return vision_family_of(config) == VisionFamily::resnet
             ? detail::any_classifier<ResNet>(config, folder, options)
             : detail::any_classifier<VisionTransformer>(config, folder, options);
}

}  // namespace tutti::models
