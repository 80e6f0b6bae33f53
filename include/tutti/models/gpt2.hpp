// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/model.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/key_value_cache.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/transposed_linear.hpp>

#include <torch/nn/modules/container/modulelist.h>

/// GPT-2: a language model that predicts the next token.
///
/// Names of parameters are Hugging Face's, so its weights load unchanged. Layers are those of
/// tutti::nn, so that surgery reaches them.
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Hugging
/// Face Transformers, `GPT2LMHeadModel`.
namespace tutti::models {

/// The shape of a GPT-2; the defaults are the smallest one's. Fields as in `GPT2Config`.
struct GPT2Options {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_inner = 0;  ///< width of the feed-forward half; 0: 4 * n_embd
  nn::Activation activation_function = nn::Activation::gelu_new;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;                ///< scores are divided by the root of their size
  bool scale_attn_by_inverse_layer_idx = false;  ///< and by the number of the block, from 1
  bool tie_word_embeddings = true;               ///< the table of tokens is the head's matrix
};

namespace detail {

/// The options of a config.json. Throws c10::Error (ValueError) for a key that changes the
/// computation and has a value that is not supported.
GPT2Options gpt2_options(const PretrainedConfig& config);

/// What config.json says of them: keys that `config` has stay as they are.
void write_gpt2_options(const GPT2Options& options, PretrainedConfig& config);

// What the scores of block `layer` are multiplied by; none: the usual number.
std::optional<double> gpt2_scale(const GPT2Options& options, std::int64_t layer);

}  // namespace detail

/// Masked attention of a block.
class GPT2AttentionImpl : public torch::nn::Cloneable<GPT2AttentionImpl>,
                          public nn::PositionBiased {
 public:
  ~GPT2AttentionImpl() override;
  /// layer: which block it is in, from 0.
  GPT2AttentionImpl(const GPT2Options& options, std::int64_t layer);

  void reset() override;

  /// Queries, keys and values of x, [N, heads, T, D] each.
  std::vector<at::Tensor> heads_of(const at::Tensor& x);

  /// x: [N, T, n_embd]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x, const detail::CausalPass& pass);

  nn::TransposedLinear c_attn{nullptr}, c_proj{nullptr};
  nn::Dropout attn_dropout{nullptr}, resid_dropout{nullptr};

 private:
  GPT2Options options_;
  std::int64_t layer_;
};
TORCH_MODULE(GPT2Attention);

/// The feed-forward half of a block.
class GPT2MLPImpl : public torch::nn::Cloneable<GPT2MLPImpl> {
 public:
  ~GPT2MLPImpl() override;
  explicit GPT2MLPImpl(const GPT2Options& options);

  void reset() override;

  at::Tensor forward(const at::Tensor& x) {
    return dropout(c_proj(nn::activate(options_.activation_function, c_fc(x))));
  }

  nn::TransposedLinear c_fc{nullptr}, c_proj{nullptr};
  nn::Dropout dropout{nullptr};

 private:
  GPT2Options options_;
};
TORCH_MODULE(GPT2MLP);

/// One layer of GPT-2: attention, then feed-forward, each on the normalised input and added to it.
class GPT2BlockImpl : public torch::nn::Cloneable<GPT2BlockImpl>, public nn::Block {
 public:
  ~GPT2BlockImpl() override;
  /// layer: which block it is, from 0.
  GPT2BlockImpl(const GPT2Options& options, std::int64_t layer);

  void reset() override;

  /// x: [N, T, n_embd]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x, const detail::CausalPass& pass);

  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  GPT2Attention attn{nullptr};
  GPT2MLP mlp{nullptr};

 private:
  GPT2Options options_;
  std::int64_t layer_;
};
TORCH_MODULE(GPT2Block);

/// GPT-2 without a head: token indices to vectors.
class GPT2ModelImpl : public torch::nn::Cloneable<GPT2ModelImpl>,
                      public nn::PositionEmbedded,
                      public nn::CheckpointsBlocks {
 public:
  ~GPT2ModelImpl() override;
  explicit GPT2ModelImpl(const GPT2Options& options);

  void reset() override;

  /// Returns [N, T, n_embd]. A cache in `pass` counts the tokens as read.
  at::Tensor forward(const detail::CausalPass& pass);

  torch::nn::EmbeddingImpl& position_embedding() override { return *wpe; }

  /// Layer i of n_layer.
  GPT2BlockImpl& block(std::size_t i) { return h->at<GPT2BlockImpl>(i); }

  nn::Embedding wte{nullptr}, wpe{nullptr};
  nn::Dropout drop{nullptr};
  torch::nn::ModuleList h{nullptr};  ///< the layers, GPT2Block
  nn::LayerNorm ln_f{nullptr};

 private:
  GPT2Options options_;
};
TORCH_MODULE(GPT2Model);

/// GPT-2 as a Model and a CausalLM: the logits of the next token, with the table of the tokens as
/// their matrix unless it is untied.
///
///     auto model = tutti::models::GPT2LMHeadModel(tutti::models::GPT2Options{.n_layer = 6});
///     tutti::Trainer trainer{model.ptr(), ...};
///
/// Its metrics are LanguageCrossEntropy and LanguagePerplexity.
class GPT2LMHeadModelImpl : public torch::nn::Cloneable<GPT2LMHeadModelImpl>,
                            public CausalLanguageModel,
                            public detail::HasTokenHead {
 public:
  ~GPT2LMHeadModelImpl() override;
  using Options = GPT2Options;
  using model_features = types<takes_tokens, has_attention, loss_takes_indices>;

  /// Throws c10::Error (ValueError) for a width that the heads do not divide.
  explicit GPT2LMHeadModelImpl(const GPT2Options& options = {});

  void reset() override;

  /// batch: `input_ids` [N, T]; `attention_mask` [N, T], 0 for padding, `position_ids`, and
  /// `sequence_id` of packed sequences where they matter. Returns logits [N, T, vocab_size]; those
  /// of position i are for token i + 1.
  Outputs forward(const Batch& batch) {
    return given_logits(head(transformer(pass(detail::causal_input(batch), detail::Count::all))),
                        is_training());
  }

  /// The logits for tokens that may go on from a cache: [N, T or 1, vocab_size].
  at::Tensor logits(const CausalInput& input) override;

  /// An empty cache for `batch` sequences of at most `max_length` tokens.
  [[nodiscard]] nn::KeyValueCache make_cache(std::int64_t batch,
                                             std::int64_t max_length) const override {
    return {options_.n_layer, batch, max_length};
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return options_.vocab_size; }

  [[nodiscard]] std::int64_t max_positions() const override { return options_.n_positions; }

  /// The mean cross entropy of the tokens after the first; `labels` [N, T] are those of the inputs,
  /// and -100 is left out.
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const {
    return loss_of(outputs.tensor(), detail::next_tokens(batch));
  }

  /// The same for each sequence: [N].
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    return losses_of(outputs.tensor(), detail::next_tokens(batch));
  }

  static Metrics metrics(bool /*train*/);
  void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) const {
    metric.update(all_logits(outputs.tensor()), detail::next_tokens(batch));
  }

  /// Keeps only the inputs of the blocks for the backward pass, see nn::CheckpointsBlocks.
  void set_activation_checkpointing(bool on) { transformer->set_activation_checkpointing(on); }

  /// The options of a Hugging Face folder. Throws c10::Error (ValueError) naming a key that changes
  /// the computation and has a value that is not supported.
  static GPT2Options options_from(const PretrainedConfig& config) {
    return detail::gpt2_options(config);
  }

  /// What config.json has to say; keys of source_config stay.
  [[nodiscard]] PretrainedConfig config() const;

  /// How the weights stand in a file.
  [[nodiscard]] WeightLayout weight_layout() const;

  [[nodiscard]] const GPT2Options& options() const { return options_; }

  GPT2Model transformer{nullptr};
  nn::Linear lm_head{nullptr};       ///< empty where the table of the tokens is the head's matrix
  PretrainedConfig source_config{};  ///< the config.json that it was made from, if any

 private:
  detail::CausalPass pass(const CausalInput& input, detail::Count count) {
    detail::CausalPass out = detail::causal_pass(input, count, "GPT-2");
    detail::check_positions(out, transformer->wpe->weight, "GPT-2");
    return out;
  }
  at::Tensor head(const at::Tensor& x) {
    if (lm_head) {
      return spread() ? token_logits(x, lm_head->weight) : lm_head(x);
    }
    return token_logits(x, transformer->wte->weight);
  }

  GPT2Options options_;
};
TORCH_MODULE(GPT2LMHeadModel);

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/gpt2.inl.hpp>
#endif
