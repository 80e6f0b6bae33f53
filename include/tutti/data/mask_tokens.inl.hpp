// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/mask_tokens.hpp>

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
