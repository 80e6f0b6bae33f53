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
  std::int64_t mask_token_id = 103;
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

#include <algorithm>
#include <utility>

#include <ATen/ops/full_like.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::data {

namespace detail {

// From [0, 1), of 53 bits.
TUTTI_INLINE double chance(Rng& rng) {
  constexpr std::int64_t steps = std::int64_t{1} << 53;
  return static_cast<double>(rng.integer(0, steps)) / static_cast<double>(steps);
}

}  // namespace detail

TUTTI_INLINE void MaskTokens::validate() const {
  TUTTI_CHECK_VALUE(mlm_probability >= 0 && mlm_probability <= 1 && mask_replace_prob >= 0 &&
                        random_replace_prob >= 0 && mask_replace_prob + random_replace_prob <= 1,
                    "MaskTokens: mlm_probability is ", mlm_probability, ", mask_replace_prob ",
                    mask_replace_prob, " and random_replace_prob ", random_replace_prob,
                    ", expected 0 to 1, the last two together as well");
  TUTTI_CHECK_VALUE(vocab_size >= 1, "MaskTokens: vocab_size is ", vocab_size,
                    ", expected 1 or more");
}

TUTTI_INLINE Batch MaskTokens::operator()(const Batch& example, Rng& rng) const {
  validate();
  const at::Tensor from = example.at("input_ids").contiguous();
  const bool masked = example.contains("special_tokens_mask");
  const at::Tensor special =
      masked ? example.at("special_tokens_mask").to(at::kLong).contiguous() : at::Tensor();
  TUTTI_CHECK_VALUE(from.scalar_type() == at::kLong && from.is_cpu() &&
                        (!masked || special.sizes() == from.sizes()),
                    "MaskTokens: input_ids are ", from.scalar_type(), from.sizes(),
                    ", expected int64 on the CPU and a special_tokens_mask of their shape");
  at::Tensor ids = from.clone();
  at::Tensor labels = at::full_like(from, ignore_index);
  auto* id = ids.mutable_data_ptr<std::int64_t>();
  auto* label = labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const bool kept =
        masked ? special.const_data_ptr<std::int64_t>()[i] != 0
               : std::find(special_ids.begin(), special_ids.end(), id[i]) != special_ids.end();
    if (kept || detail::chance(rng) >= mlm_probability) {
      continue;
    }
    label[i] = id[i];
    const double what = detail::chance(rng);
    if (what < mask_replace_prob) {
      id[i] = mask_token_id;
    } else if (what < mask_replace_prob + random_replace_prob) {
      id[i] = rng.integer(0, vocab_size);
    }
  }
  Batch out;
  for (const auto& [name, tensor] : example) {
    if (name != "special_tokens_mask" && name != "labels") {
      out[name] = name == "input_ids" ? ids : tensor;
    }
  }
  out["labels"] = std::move(labels);
  return out;
}

}  // namespace tutti::data

#endif
