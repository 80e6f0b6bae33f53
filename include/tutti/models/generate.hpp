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
#include <ATen/ops/ones.h>
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
/// max_length; c10::Error for wrong shapes, padding on the right, and as the model does when the
/// text grows longer than it can read.
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

namespace tutti::models::detail {

/// Gives a model that keeps nothing the whole text at every step.
class UncachedLogits final : public NextLogits {
 public:
  explicit UncachedLogits(const AnyModel& model) : model_(model) {}

  void begin(std::int64_t, std::int64_t) override {}
  at::Tensor operator()(const at::Tensor& tokens, std::int64_t, const at::Tensor& mask) override {
    Batch batch{{"input_ids", tokens}};
    if (mask.defined()) {
      batch["attention_mask"] = mask;
    }
    const Outputs outputs = model_.eval_forward(batch);
    const at::Tensor& all = outputs.tensor();
    TUTTI_CHECK(all.dim() == 3 && all.size(0) == tokens.size(0) && all.size(1) == tokens.size(1),
                "generate: the model's outputs are ", all.sizes(), ", expected logits [",
                tokens.size(0), ", ", tokens.size(1),
                ", vocabulary]; the model does not predict tokens");
    return all.select(1, -1);
  }

 private:
  const AnyModel& model_;
};

/// Whether these tokens, which a row has written, end it.
TUTTI_INLINE bool ends(const std::vector<std::int64_t>& written, const GenerationConfig& config) {
  const auto& eos = config.eos_token_id;
  if (std::find(eos.begin(), eos.end(), written.back()) != eos.end()) {
    return true;
  }
  return std::any_of(config.stop_sequences.begin(), config.stop_sequences.end(),
                     [&](const std::vector<std::int64_t>& stop) {
                       return stop.size() <= written.size() &&
                              std::equal(stop.rbegin(), stop.rend(), written.rbegin());
                     });
}

/// The rows of a text that grows, and how each ends.
class Writing {
 public:
  Writing(const at::Tensor& input_ids, const GenerationConfig& config, std::int64_t new_tokens)
      : config_(config),
        rows_(static_cast<std::size_t>(input_ids.size(0))),
        prompt_(input_ids.size(1)),
        length_(prompt_) {
    all_ = at::empty({input_ids.size(0), prompt_ + new_tokens}, input_ids.options());
    all_.narrow(1, 0, prompt_).copy_(input_ids);
    const std::uint64_t seed = config.seed ? *config.seed : drawn_seed();
    for (std::size_t i = 0; config.do_sample && i < rows_.size(); ++i) {
      rows_[i].rng = Rng(seed, i);
    }
  }

  [[nodiscard]] at::Tensor text() const { return all_.narrow(1, 0, length_); }

  /// Some row goes on.
  [[nodiscard]] bool goes_on() const {
    return std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.ended; });
  }

  /// Appends a token to each row, chosen by its scores [N, V]; returns them.
  std::vector<std::int64_t> append(const at::Tensor& scores) {
    const at::Tensor chosen = (config_.do_sample ? draw(scores) : scores.argmax(-1)).to(at::kCPU);
    const auto* token = chosen.const_data_ptr<std::int64_t>();
    std::vector<std::int64_t> out(token, token + rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].ended) {
        out[i] = padding();
      } else {
        rows_[i].written.push_back(out[i]);
        rows_[i].ended = ends(rows_[i].written, config_);
      }
    }
    at::Tensor next = at::empty({all_.size(0)}, chosen.options());
    std::copy(out.begin(), out.end(), next.mutable_data_ptr<std::int64_t>());
    all_.select(1, length_++).copy_(next);
    return out;
  }

 private:
  struct Row {
    Rng rng{};
    std::vector<std::int64_t> written{};
    bool ended = false;
  };

  static std::uint64_t drawn_seed() {
    return static_cast<std::uint64_t>(at::empty({}, at::kLong).random_().item<std::int64_t>());
  }

  // A token of each row, [N], by the inverse of the distribution's sums.
  at::Tensor draw(const at::Tensor& scores) {
    const at::Tensor sums = scores.softmax(-1, at::kDouble).cumsum(-1);
    const at::Tensor all = sums.narrow(-1, sums.size(-1) - 1, 1);
    at::Tensor at_random = at::empty({scores.size(0), 1}, at::kDouble);
    auto* uniform = at_random.mutable_data_ptr<double>();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      uniform[i] = rows_[i].rng.uniform();
    }
    // Tokens that were removed have probability 0, so none of them is where a sum rises.
    const at::Tensor below = sums.le(at_random.to(sums.device()).mul(all));
    return below.logical_and_(sums.lt(all)).sum(-1);
  }

  [[nodiscard]] std::int64_t padding() const {
    return config_.pad_token_id ? *config_.pad_token_id : config_.eos_token_id.front();
  }

  const GenerationConfig& config_;
  std::vector<Row> rows_;
  std::int64_t prompt_;
  std::int64_t length_;
  at::Tensor all_;  // [N, prompt + new tokens], of which length_ columns are written
};

/// How many tokens are to be written.
TUTTI_INLINE std::int64_t room(const GenerationConfig& config, std::int64_t prompt) {
  if (config.max_new_tokens || !config.max_length) {
    return config.max_new_tokens ? *config.max_new_tokens : 20;
  }
  TUTTI_CHECK_VALUE(*config.max_length > prompt, "generate: the prompts have ", prompt,
                    " tokens and max_length is ", *config.max_length,
                    ", which leaves no room; set max_new_tokens");
  return *config.max_length - prompt;
}

/// The mask of the prompts as int64 [N, T]; undefined where nothing is padded.
TUTTI_INLINE at::Tensor mask_of(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                                const GenerationConfig& config) {
  at::Tensor mask = attention_mask;
  if (!mask.defined() && config.pad_token_id) {
    const auto& eos = config.eos_token_id;
    if (std::find(eos.begin(), eos.end(), *config.pad_token_id) != eos.end()) {
      return {};
    }
    mask = input_ids.ne(*config.pad_token_id);
  }
  if (!mask.defined()) {
    return {};
  }
  TUTTI_CHECK(mask.sizes() == input_ids.sizes(), "generate: the attention mask is ", mask.sizes(),
              " and the tokens are ", input_ids.sizes(), ", expected the same shape");
  mask = mask.ne(0);
  if (mask.all().item<bool>()) {
    return {};
  }
  TUTTI_CHECK(mask.select(1, -1).all().item<bool>(),
              "generate: a prompt ends with padding; put the padding on its left, so that all "
              "prompts end at the same place");
  return mask.to(at::kLong);
}

TUTTI_INLINE at::Tensor write_on(torch::nn::Module& module, NextLogits& logits,
                                 const at::Tensor& input_ids, const GenerationConfig& config,
                                 const at::Tensor& attention_mask, const TokenCallback& on_tokens) {
  config.validate();
  TUTTI_CHECK(input_ids.dim() == 2 && input_ids.numel() > 0 && input_ids.scalar_type() == at::kLong,
              "generate: the tokens are ", input_ids.scalar_type(), " ", input_ids.sizes(),
              ", expected int64 [N, T] with at least one each; begin an empty text with the "
              "model's bos token");
  const std::int64_t rows = input_ids.size(0);
  const std::int64_t prompt = input_ids.size(1);
  TUTTI_CHECK_VALUE(rows == 1 || config.stop_sequences.empty() || config.pad_token_id ||
                        !config.eos_token_id.empty(),
                    "generate: the texts end at stop_sequences, and nothing says what follows in "
                    "a row that has ended; set pad_token_id");
  const std::int64_t new_tokens = room(config, prompt);
  const c10::AutoGradMode no_gradients(false);
  const nn::EvalMode eval(module);
  at::Tensor mask = mask_of(input_ids, attention_mask, config);
  if (mask.defined()) {
    mask = at::cat({mask, at::ones({rows, new_tokens}, mask.options())}, 1);
  }
  Writing writing(input_ids, config, new_tokens);
  logits.begin(rows, prompt + new_tokens);
  std::int64_t fresh = prompt;
  for (std::int64_t i = 0; i < new_tokens && writing.goes_on(); ++i) {
    const at::Tensor text = writing.text();
    const at::Tensor seen = mask.defined() ? mask.narrow(1, 0, prompt + i) : mask;
    const at::Tensor scores = logits(text, std::exchange(fresh, 1), seen).to(at::kFloat);
    const auto tokens = writing.append(functional::process_scores(scores, text, config));
    if (on_tokens) {
      on_tokens(tokens);
    }
  }
  return writing.text();
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE std::vector<std::vector<std::int64_t>> written_tokens(const at::Tensor& text,
                                                                   std::int64_t prompt,
                                                                   const GenerationConfig& config) {
  TUTTI_CHECK(text.dim() == 2 && prompt >= 0 && prompt <= text.size(1),
              "written_tokens: the text is ", text.sizes(), " and the prompt ", prompt,
              ", expected [N, T] and 0 to T");
  const at::Tensor host = text.to(at::kCPU, at::kLong).contiguous();
  std::vector<std::vector<std::int64_t>> out(static_cast<std::size_t>(host.size(0)));
  const auto* token = host.const_data_ptr<std::int64_t>();
  for (std::vector<std::int64_t>& row : out) {
    for (std::int64_t i = prompt; i < host.size(1); ++i) {
      row.push_back(token[i]);
      if (detail::ends(row, config)) {
        break;
      }
    }
    token += host.size(1);
  }
  return out;
}

TUTTI_INLINE at::Tensor generate(const AnyModel& model, const at::Tensor& input_ids,
                                 const GenerationConfig& config, const at::Tensor& attention_mask,
                                 const TokenCallback& on_tokens) {
  torch::nn::Module& module = *model.module();
  if (auto* cached = dynamic_cast<CausalLanguageModel*>(&module)) {
    detail::CachedLogits<CausalLanguageModel> logits(*cached);
    return detail::write_on(module, logits, input_ids, config, attention_mask, on_tokens);
  }
  detail::UncachedLogits logits(model);
  return detail::write_on(module, logits, input_ids, config, attention_mask, on_tokens);
}

}  // namespace tutti::models

#endif
