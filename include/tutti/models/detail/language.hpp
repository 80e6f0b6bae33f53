// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/key_value_cache.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/rotary.hpp>

#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

/// What the language models share.
namespace tutti::models::detail {

inline nn::Linear linear(std::int64_t in, std::int64_t out, bool bias) {
  return nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

// The tensor of that name, undefined where the batch has none.
inline at::Tensor optional(const Batch& batch, std::string_view name) {
  return batch.contains(name) ? batch.at(name) : at::Tensor();
}

// An attention mask, not 0 where a key is seen, as attention takes it: bool [N, 1, 1, K] for
// [N, K]; a mask [N, 1, T, K] says it for each query. Undefined stays so. With sequence_id [N, K]
// a query sees the keys of its own sequence alone: [N, 1, K, K].
at::Tensor seen_keys(const at::Tensor& mask, const at::Tensor& sequence_id = {});

// Positions that begin anew where sequence_id [N, T] changes: [N, T].
at::Tensor positions_of_sequences(const at::Tensor& sequence_id);

// The table has `length` positions, those before the tokens included.
void check_positions(std::int64_t length, const at::Tensor& table, std::string_view model);

// The positions of ids [N, T]: those of the batch, else 0 to T-1, which the table has to have:
// [1 or N, T].
at::Tensor positions(const Batch& batch, const at::Tensor& table, std::string_view model);

// What the layers of a causal model need in one forward pass.
struct CausalPass {
  at::Tensor ids{};          // [N, T]
  at::Tensor positions{};    // [1 or N, T]
  std::int64_t length = -1;  // the largest position and 1; below 0: not known
  std::int64_t most = -1;    // what it is at most; below 0: not known
  nn::SeenKeys keys{};
  nn::KeyValueCache* cache = nullptr;
  nn::RotaryTables rotary{};  // of models that turn queries and keys

  // All positions so far, those of the cache included.
  [[nodiscard]] std::int64_t end() const {
    return ids.size(1) + (cache != nullptr ? cache->length() : 0);
  }
};

// From which a pass counts its positions, where none are given.
enum class Count { all, unpadded };

CausalPass causal_pass(const CausalInput& in, Count count, std::string_view model);

// The table has all positions that the pass counted itself. They are looked up, which waits for
// the device, only where they might not fit.
void check_positions(const CausalPass& pass, const at::Tensor& table, std::string_view model);

// A batch as a causal model reads it in training: positions are counted from 0, padding included.
CausalInput causal_input(const Batch& batch);

// Labels [N, T] of the next tokens: position i has those of i + 1, the last one none.
at::Tensor next_tokens(const Batch& batch);

// The mean loss of logits [N, T, V] against tokens [N, T], of which -100 counts nothing.
inline at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& tokens) {
  return at::cross_entropy_loss(logits.flatten(0, -2), tokens.flatten());
}

// The same for each sequence, [N]; 0 for one of which no token counts.
at::Tensor sequence_losses(const at::Tensor& logits, const at::Tensor& tokens);

// Logits of which each rank of a model that is spread over ranks has those of its own tokens.
class SpreadTokens {
 public:
  SpreadTokens() = default;
  virtual ~SpreadTokens();
  SpreadTokens(const SpreadTokens&) = delete;
  SpreadTokens& operator=(const SpreadTokens&) = delete;

  // All tokens of all ranks.
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  // Of x [N, T, width], the same on all ranks: [N, T, own tokens]. weight, bias: this rank's rows.
  [[nodiscard]] virtual at::Tensor logits(const at::Tensor& x, const at::Tensor& weight,
                                          const at::Tensor& bias) const = 0;
  // [N, T, vocabulary] of [N, T, own tokens]; a collective.
  [[nodiscard]] virtual at::Tensor whole(const at::Tensor& logits) const = 0;
  // The losses [n] of logits [n, own tokens], 0 for targets of -100; a collective.
  [[nodiscard]] virtual at::Tensor losses(const at::Tensor& logits,
                                          const at::Tensor& targets) const = 0;
};

// A model with a head that gives logits of tokens. Once it is spread over ranks, training passes
// give the logits of a rank's own tokens, which loss and metrics know what to do with; all others
// give those of all tokens.
class HasTokenHead {
 public:
  virtual ~HasTokenHead() = default;

  // Null: every rank has all tokens.
  void spread_tokens(std::shared_ptr<const SpreadTokens> spread) { spread_ = std::move(spread); }
  [[nodiscard]] const std::shared_ptr<const SpreadTokens>& spread() const { return spread_; }

 protected:
  // The logits of x by a table, or a head's matrix, of tokens.
  [[nodiscard]] at::Tensor token_logits(const at::Tensor& x, const at::Tensor& weight,
                                        const at::Tensor& bias = {}) const;
  // Those of all tokens, if they are not.
  [[nodiscard]] at::Tensor all_logits(const at::Tensor& logits) const {
    return is_part(logits) ? spread_->whole(logits) : logits;
  }
  // As forward() returns them.
  [[nodiscard]] at::Tensor given_logits(const at::Tensor& logits, bool training) const {
    return training && c10::GradMode::is_enabled() ? logits : all_logits(logits);
  }
  // token_loss() and sequence_losses() of both kinds.
  [[nodiscard]] at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& tokens) const;
  [[nodiscard]] at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& tokens) const;

 private:
  [[nodiscard]] bool is_part(const at::Tensor& logits) const {
    return spread_ != nullptr && logits.size(-1) != spread_->vocabulary();
  }

  std::shared_ptr<const SpreadTokens> spread_;
};

// Initialises the layers of `model` as Hugging Face does: normal numbers, no biases.
void initialize(torch::nn::Module& model, double range);

// The nonlinearity that a config names under `key`. Throws c10::Error (ValueError) for one that
// there is not.
inline nn::Activation activation_of(const PretrainedConfig& config, std::string_view key,
                                    std::string_view otherwise) {
  const auto found = nn::activation_named(config.text(key, otherwise));
  if (!found) {
    config.refuse(key, "one of " + nn::activation_names());
  }
  return *found;
}

// Sizes in a config.json: of layers and heads, of vectors, of tables. More than any model has is
// refused before a model of it is made.
inline std::int64_t count_in(const PretrainedConfig& config, std::string_view key,
                             std::int64_t otherwise) {
  return config.integer_in(key, otherwise, 1, 10'000);
}
inline std::int64_t width_in(const PretrainedConfig& config, std::string_view key,
                             std::int64_t otherwise) {
  return config.integer_in(key, otherwise, 1, 10'000'000);
}
inline std::int64_t rows_in(const PretrainedConfig& config, std::string_view key,
                            std::int64_t otherwise) {
  return config.integer_in(key, otherwise, 1, 2'147'483'647);
}

// The probability that a number drops out.
inline double dropout_in(const PretrainedConfig& config, std::string_view key, double otherwise) {
  return config.number_in(key, otherwise, 0, 1);
}

// What is added to a variance, or the deviation of new weights.
inline double scale_in(const PretrainedConfig& config, std::string_view key, double otherwise) {
  return config.number_in(key, otherwise, 0, 1e6);
}

// The index of the token whose embedding does not learn; below 0 it counts from the end, as in
// Python. None where the key is null, or absent and without a default.
std::optional<std::int64_t> padding_in(const PretrainedConfig& config,
                                       std::optional<std::int64_t> otherwise,
                                       std::int64_t vocab_size);

// Refuses what no language model here can be.
void refuse_unsupported(const PretrainedConfig& config);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

TUTTI_INLINE at::Tensor seen_keys(const at::Tensor& mask, const at::Tensor& sequence_id) {
  at::Tensor seen;
  if (mask.defined()) {
    TUTTI_CHECK(mask.dim() == 2 || mask.dim() == 4, "the attention_mask is ", mask.sizes(),
                ", expected [N, length] or [N, 1, queries, length]");
    seen = mask.dim() == 2 ? mask.ne(0).unsqueeze(1).unsqueeze(1) : mask.ne(0);
  }
  if (sequence_id.defined()) {
    TUTTI_CHECK(sequence_id.dim() == 2, "the sequence_id is ", sequence_id.sizes(),
                ", expected [N, length]");
    const at::Tensor own = sequence_id.unsqueeze(2).eq(sequence_id.unsqueeze(1)).unsqueeze(1);
    seen = seen.defined() ? seen.logical_and(own) : own;
  }
  return seen;
}

TUTTI_INLINE at::Tensor positions_of_sequences(const at::Tensor& sequence_id) {
  const at::Tensor place = at::arange(sequence_id.size(1), sequence_id.options().dtype(at::kLong))
                               .expand_as(sequence_id);
  const at::Tensor changes =
      sequence_id.slice(1, 1).ne(sequence_id.slice(1, 0, sequence_id.size(1) - 1));
  const at::Tensor begins =
      at::cat({changes.new_zeros({sequence_id.size(0), 1}), changes}, 1).to(at::kLong).mul(place);
  return place - std::get<0>(begins.cummax(1));
}

TUTTI_INLINE void check_positions(std::int64_t length, const at::Tensor& table,
                                  std::string_view model) {
  TUTTI_CHECK(length <= table.size(0), model, ": the sequences have length ", length,
              " and the model ", table.size(0),
              " positions; shorten them, or apply ALiBi with a "
              "larger max_sequence_length");
}

// The largest position and 1.
TUTTI_INLINE std::int64_t length_of(const at::Tensor& positions) {
  return positions.numel() == 0 ? 0 : positions.max().item<std::int64_t>() + 1;
}

TUTTI_INLINE at::Tensor positions(const Batch& batch, const at::Tensor& table,
                                  std::string_view model) {
  const at::Tensor& ids = batch.inputs();
  TUTTI_CHECK(ids.dim() == 2, model, ": the token indices are ", ids.sizes(), ", expected [N, T]");
  if (batch.contains("position_ids")) {
    return batch.at("position_ids");
  }
  if (batch.contains("sequence_id")) {
    const at::Tensor out = positions_of_sequences(batch.at("sequence_id"));
    if (ids.size(1) > table.size(0)) {
      check_positions(length_of(out), table, model);
    }
    return out;
  }
  check_positions(ids.size(1), table, model);
  return at::arange(ids.size(1), ids.options().dtype(at::kLong)).unsqueeze(0);
}

TUTTI_INLINE CausalPass causal_pass(const CausalInput& in, Count count, std::string_view model) {
  const at::Tensor& ids = in.input_ids;
  TUTTI_CHECK(ids.defined() && ids.dim() == 2, model, ": the token indices are ",
              ids.defined() ? ids.sizes() : at::IntArrayRef(), ", expected [N, T]");
  const std::int64_t before = in.cache != nullptr ? in.cache->length() : 0;
  const std::int64_t end = before + ids.size(1);
  const at::Tensor& mask = in.attention_mask;
  TUTTI_CHECK(!mask.defined() || (mask.size(0) == ids.size(0) && mask.size(-1) == end), model,
              ": the attention_mask is ", mask.defined() ? mask.sizes() : at::IntArrayRef(),
              ", expected [", ids.size(0), ", ", end, "]: ", before, " positions of the cache and ",
              ids.size(1), " new ones");
  const at::Tensor& sequence = in.sequence_id;
  TUTTI_CHECK(!sequence.defined() || (sequence.sizes() == ids.sizes() && in.cache == nullptr),
              model, ": the sequence_id is ", sequence.defined() ? sequence.sizes() : ids.sizes(),
              in.cache == nullptr ? "" : " beside a cache", ", expected ", ids.sizes(),
              " and no cache");
  CausalPass pass{.ids = ids, .keys = nn::SeenKeys(seen_keys(mask, sequence)), .cache = in.cache};
  if (in.position_ids.defined()) {
    pass.positions = in.position_ids;
  } else if (sequence.defined()) {
    pass.positions = positions_of_sequences(sequence);
    pass.most = end;
  } else if (count == Count::unpadded && mask.defined() && mask.dim() == 2) {
    pass.positions = mask.ne(0).cumsum(-1).sub(1).clamp_min(0).slice(1, before);
    pass.most = end;
  } else {
    pass.positions = at::arange(before, end, ids.options().dtype(at::kLong)).unsqueeze(0);
    pass.length = pass.most = end;
  }
  return pass;
}

TUTTI_INLINE void check_positions(const CausalPass& pass, const at::Tensor& table,
                                  std::string_view model) {
  if (pass.most > table.size(0)) {
    check_positions(pass.length >= 0 ? pass.length : length_of(pass.positions), table, model);
  }
}

TUTTI_INLINE CausalInput causal_input(const Batch& batch) {
  return {.input_ids = batch.inputs(),
          .attention_mask = optional(batch, "attention_mask"),
          .position_ids = optional(batch, "position_ids"),
          .sequence_id = optional(batch, "sequence_id")};
}

TUTTI_INLINE at::Tensor next_tokens(const Batch& batch) {
  const at::Tensor& labels = batch.targets();
  return at::cat({labels.slice(1, 1), labels.new_full({labels.size(0), 1}, -100)}, 1);
}

TUTTI_INLINE at::Tensor sequence_losses(const at::Tensor& logits, const at::Tensor& tokens) {
  const at::Tensor each =
      at::cross_entropy_loss(logits.flatten(0, -2), tokens.flatten(), {}, at::Reduction::None)
          .view(tokens.sizes());
  return each.sum(1).div(tokens.ne(-100).sum(1).clamp_min(1));
}

TUTTI_INLINE SpreadTokens::~SpreadTokens() = default;

TUTTI_INLINE at::Tensor HasTokenHead::token_logits(const at::Tensor& x, const at::Tensor& weight,
                                                   const at::Tensor& bias) const {
  return spread_ ? spread_->logits(x, weight, bias) : at::linear(x, weight, bias);
}

TUTTI_INLINE at::Tensor HasTokenHead::loss_of(const at::Tensor& logits,
                                              const at::Tensor& tokens) const {
  if (!is_part(logits)) {
    return token_loss(logits, tokens);
  }
  const at::Tensor targets = tokens.flatten();
  return spread_->losses(logits.flatten(0, -2), targets).sum() / targets.ne(-100).sum();
}

TUTTI_INLINE at::Tensor HasTokenHead::losses_of(const at::Tensor& logits,
                                                const at::Tensor& tokens) const {
  if (!is_part(logits)) {
    return sequence_losses(logits, tokens);
  }
  const at::Tensor each =
      spread_->losses(logits.flatten(0, -2), tokens.flatten()).view(tokens.sizes());
  return each.sum(1).div(tokens.ne(-100).sum(1).clamp_min(1));
}

TUTTI_INLINE void initialize(torch::nn::Module& model, double range) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(module.get())) {
      torch::nn::init::normal_(linear->weight, 0, range);
      if (linear->bias.defined()) {
        torch::nn::init::zeros_(linear->bias);
      }
    } else if (auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(module.get())) {
      torch::nn::init::normal_(embedding->weight, 0, range);
      if (const auto padding = embedding->options.padding_idx()) {
        const c10::AutoGradMode no_grad(false);
        embedding->weight[*padding].zero_();
      }
    }
  }
}

TUTTI_INLINE std::optional<std::int64_t> padding_in(const PretrainedConfig& config,
                                                    std::optional<std::int64_t> otherwise,
                                                    std::int64_t vocab_size) {
  const std::optional<std::int64_t> id = config.token("pad_token_id");
  if (!id) {
    return config.is_null("pad_token_id") ? std::nullopt : otherwise;
  }
  TUTTI_CHECK_VALUE(*id >= -vocab_size && *id < vocab_size, config.origin(), ": pad_token_id is ",
                    *id, ", expected an integer from ", -vocab_size, " to ", vocab_size - 1);
  return *id < 0 ? *id + vocab_size : *id;
}

TUTTI_INLINE void refuse_unsupported(const PretrainedConfig& config) {
  config.only("add_cross_attention", {false});
  config.only("is_encoder_decoder", {false});
  if (const auto* pruned = config.find("pruned_heads");
      pruned != nullptr && !(pruned->is_object() && pruned->size() == 0)) {
    config.refuse("pruned_heads", "{}");
  }
  if (config.has("quantization_config")) {
    config.refuse("quantization_config", "weights that are not quantised");
  }
}

}  // namespace tutti::models::detail

#endif
