// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <tutti/config.hpp>
#include <tutti/core/model.hpp>
#include <tutti/models/from_pretrained.hpp>

/// Models by what their folder says, as Hugging Face's AutoModel classes make them. Including this
/// header compiles every family; with tutti::separate one source of the program does.
namespace tutti::models {

/// The causal language model of a folder: `model_type` gpt2, llama, mistral, qwen2 or qwen3.
///
///     tutti::AnyModel model = tutti::models::auto_model_for_causal_lm("/models/llama");
///     tutti::Trainer trainer{model, ...};
///
/// Throws c10::Error as from_pretrained() does, and for another type, which it names.
AnyModel auto_model_for_causal_lm(const std::string& folder,
                                  const FromPretrainedOptions& options = {});

/// The model of a folder that fills in masked tokens: `model_type` bert. Throws as above.
AnyModel auto_model_for_masked_lm(const std::string& folder,
                                  const FromPretrainedOptions& options = {});

/// The classifier of sequences of a folder: `model_type` bert. A folder of a pretrained BERT has no
/// head: set `allow_new_heads`, and the number of labels with `edit_config`. Throws as above.
AnyModel auto_model_for_sequence_classification(const std::string& folder,
                                                const FromPretrainedOptions& options = {});

/// The classifier of images of a folder: a ViT or ResNet of Transformers, timm or torchvision, in
/// a Classifier. Throws as above.
AnyModel auto_model_for_image_classification(const std::string& folder,
                                             const FromPretrainedOptions& options = {});

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/auto_model.inl.hpp>
#endif
