// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/rng.hpp>

/// Masked language modelling: which tokens a BERT has to find.
namespace tutti::data {

/// Hides tokens of an example, as BERT was trained: a transform for DataLoader.
///
///     tutti::DataLoader train{texts, {.batch_size = 32, .shuffle = true,
///         .transform = tutti::data::MaskTokens{.mask_token_id = 103, .vocab_size = 30522,
///                                              .special_ids = {0, 101, 102}},
///         .collate = tutti::data::PadSequences{}}};
///
/// Each token that is not special is chosen with mlm_probability. A chosen one becomes the mask
/// with 0.8, any token of the vocabulary with 0.1, and stays with 0.1. `labels` are the chosen
/// tokens, ignore_index elsewhere. What is drawn depends on seed, epoch and index of the example.
/// Source: Devlin et al., "BERT", 2019; Transformers, `DataCollatorForLanguageModeling`.
struct MaskTokens {
  std::int64_t mask_token_id = 103;  ///< this and the next one are bert-base-uncased's
  std::int64_t vocab_size = 30522;
  std::vector<std::int64_t> special_ids = {};  ///< are never chosen: padding, [CLS], [SEP]
  double mlm_probability = 0.15;               ///< of a token to be chosen; 0 to 1
  double mask_replace_prob = 0.8;              ///< of a chosen one to become the mask
  double random_replace_prob = 0.1;            ///< of a chosen one to become any token
  std::int64_t ignore_index = -100;            ///< the label of what was not chosen

  /// example: `input_ids` int64, of any shape; `special_tokens_mask` of that shape, if there is
  /// one, says which are special instead of special_ids, and is left out of what comes back.
  /// Throws c10::ValueError when an option is out of range or the tensors do not fit.
  Batch operator()(const Batch& example, Rng& rng) const;

  /// Throws c10::ValueError naming an option that is out of range.
  void validate() const;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/mask_tokens.inl.hpp>
#endif
