// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include <tutti/nn/key_value_cache.hpp>

#include <ATen/core/Tensor.h>

/// What every language model that predicts the next token can do.
namespace tutti::models {

/// What a causal language model reads in one call.
struct CausalInput {
  at::Tensor input_ids;  ///< token ids [N, T]: with a cache, those that it does not hold yet

  /// [N, P + T], 0 for padding, P being the length of the cache; undefined: nothing is padded.
  at::Tensor attention_mask = {};

  /// [N, T] or [1, T]. Undefined: `cumsum(attention_mask) - 1`, at least 0, so that padding on the
  /// left counts no positions; without a mask P, P + 1, ...; with sequence_id from 0 in each
  /// sequence.
  at::Tensor position_ids = {};

  /// [N, T], which of several sequences of its row a token belongs to, neighbours with one number:
  /// it sees no other's tokens. Undefined: a row is one sequence. Not with a cache.
  at::Tensor sequence_id = {};

  nn::KeyValueCache* cache = nullptr;  ///< what was read before; the new tokens join it
  bool last_only = false;              ///< only the logits of the last position are wanted
};

/// `M` predicts the next token: `model.logits(input)` are the logits [N, T, V], or [N, 1, V] where
/// only the last are wanted, and `model.make_cache(batch, max_length)` is an empty cache for it.
template <class M>
concept CausalLM = requires(M& model, const M& constant, const CausalInput& input) {
  { model.logits(input) } -> std::same_as<at::Tensor>;
  { constant.make_cache(std::int64_t{1}, std::int64_t{1}) } -> std::same_as<nn::KeyValueCache>;
};

/// What models that satisfy CausalLM derive from, so that it is found among modules of whatever
/// type by dynamic_cast.
class CausalLanguageModel {
 public:
  virtual ~CausalLanguageModel() = default;

  /// The logits [N, T, V] of the next token; [N, 1, V] where only the last are wanted.
  virtual at::Tensor logits(const CausalInput& input) = 0;

  /// An empty cache for `batch` texts of up to `max_length` tokens.
  [[nodiscard]] virtual nn::KeyValueCache make_cache(std::int64_t batch,
                                                     std::int64_t max_length) const = 0;

  /// Token ids are below this; 0: the model does not say.
  [[nodiscard]] virtual std::int64_t vocab_size() const { return 0; }

  /// A text has at most so many tokens; 0: any number.
  [[nodiscard]] virtual std::int64_t max_positions() const { return 0; }
};

}  // namespace tutti::models
