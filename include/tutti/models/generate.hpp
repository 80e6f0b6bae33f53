// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/model.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/models/generation_config.hpp>
#include <tutti/models/logits_processors.hpp>
#include <tutti/nn/eval_mode.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

/// Writing on with a language model.
namespace tutti::models {

/// Is called with the new token of each row, as soon as they are known, once for every position.
/// A row that has ended gets padding.
using TokenCallback = std::function<void(std::span<const std::int64_t> tokens)>;

/// Lets a causal language model write on from the tokens that it is given.
///
///     at::Tensor ids = ...;                                    // [N, T]
///     at::Tensor text = models::generate(*net, ids, {.max_new_tokens = 64});
///     text = models::generate(*net, ids, models::GenerationConfig::read(folder), mask);
///
/// The prompt is read at once, then one token a step; keys and values of what was read are kept in
/// memory that is allocated once, so that a step takes no longer for a long text. Computes without
/// gradients and in evaluation mode; each module has its mode back afterwards. Scores are fp32.
///
/// input_ids: int64 [N, T], T >= 1, on the model's device. attention_mask: [N, T], 0 for padding,
/// which stands on the left; undefined: where pad_token_id is set and no eos token, padding is what
/// equals it, else there is none. on_tokens: empty, or called at every step; may throw to stop.
///
/// Returns [N, T + new], int64: the prompts and what follows. A row that has ended is filled with
/// pad_token_id, or with the first eos token; the result ends with the longest row. Each row draws
/// from a random stream of its own, by the seed and the row's number, so that its text does not
/// depend on how the other rows end.
///
/// With RoPE of the kind `dynamic` the rotation of a position depends on the length at which it was
/// read, and keys in the cache keep theirs: the texts are those of Transformers with its cache,
/// and differ from what a pass over the whole text would give.
///
/// Throws c10::ValueError for options out of range and where the prompt leaves no room up to
/// max_length; c10::IndexError for a token id that is negative or, where the model says how many it
/// has, too large; c10::Error for wrong shapes, padding on the right, and as the model does when
/// the text grows longer than it can read.
template <class M>
  requires CausalLM<M> && std::is_base_of_v<torch::nn::Module, M>
at::Tensor generate(M& model, const at::Tensor& input_ids, const GenerationConfig& config = {},
                    const at::Tensor& attention_mask = {}, const TokenCallback& on_tokens = {});

/// The same for any model that takes `input_ids` [N, T] and returns logits [N, T, V], as an
/// algorithm or a callback has it: `generate(state.task, ids)`.
///
/// A model whose module derives from CausalLanguageModel writes as above. Any other is given the
/// whole text at every step, and `attention_mask` where there is padding; a step then takes longer
/// the longer the text is.
at::Tensor generate(const AnyModel& model, const at::Tensor& input_ids,
                    const GenerationConfig& config = {}, const at::Tensor& attention_mask = {},
                    const TokenCallback& on_tokens = {});

/// The tokens that each row wrote itself: up to and with those that ended it, without padding.
///
/// text: int64 [N, T], of generate(). prompt: the length of the prompts, 0 to T. config: the one
/// that it was written by.
std::vector<std::vector<std::int64_t>> written_tokens(const at::Tensor& text, std::int64_t prompt,
                                                      const GenerationConfig& config);

namespace detail {

/// Gives the logits of the next token.
class NextLogits {
 public:
  virtual ~NextLogits() = default;

  /// Before the first call. length: up to which the text may be read.
  virtual void begin(std::int64_t batch, std::int64_t length) = 0;

  /// Token ids are below this; 0: not known.
  [[nodiscard]] virtual std::int64_t vocab_size() const { return 0; }

  /// tokens: [N, t], the whole text so far. fresh: how many of the last have not been seen yet.
  /// mask: [N, t]; undefined: nothing is padded. Returns [N, V].
  virtual at::Tensor operator()(const at::Tensor& tokens, std::int64_t fresh,
                                const at::Tensor& mask) = 0;
};

template <class M>
class CachedLogits final : public NextLogits {
 public:
  explicit CachedLogits(M& model) : model_(model) {}

  void begin(std::int64_t batch, std::int64_t length) override {
    cache_ = std::as_const(model_).make_cache(batch, length);
  }
  [[nodiscard]] std::int64_t vocab_size() const override {
    if constexpr (std::is_base_of_v<CausalLanguageModel, M>) {
      return model_.vocab_size();
    }
    return 0;
  }
  at::Tensor operator()(const at::Tensor& tokens, std::int64_t fresh,
                        const at::Tensor& mask) override {
    return model_
        .logits({.input_ids = tokens.narrow(1, tokens.size(1) - fresh, fresh),
                 .attention_mask = mask,
                 .cache = &cache_,
                 .last_only = true})
        .select(1, -1);
  }

 private:
  M& model_;
  nn::KeyValueCache cache_;
};

at::Tensor write_on(torch::nn::Module& module, NextLogits& logits, const at::Tensor& input_ids,
                    const GenerationConfig& config, const at::Tensor& attention_mask,
                    const TokenCallback& on_tokens);

}  // namespace detail

template <class M>
  requires CausalLM<M> && std::is_base_of_v<torch::nn::Module, M>
at::Tensor generate(M& model, const at::Tensor& input_ids, const GenerationConfig& config,
                    const at::Tensor& attention_mask, const TokenCallback& on_tokens) {
  detail::CachedLogits<M> logits(model);
  return detail::write_on(model, logits, input_ids, config, attention_mask, on_tokens);
}

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/generate.inl.hpp>
#endif
