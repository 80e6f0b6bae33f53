// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/config.hpp>
#include <tutti/core/model.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/metrics/make_metrics.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/models/detail/llama_config.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/context_length.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/key_value_cache.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/rms_norm.hpp>
#include <tutti/nn/rotary.hpp>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>

namespace tutti::models {

/// Causal attention of a layer: fewer heads of keys than of queries, both turned by their position.
class LlamaAttentionImpl : public torch::nn::Cloneable<LlamaAttentionImpl>,
                           public nn::HeadedAttention {
 public:
  /// layer: which one it is, from 0.
  LlamaAttentionImpl(const LlamaOptions& options, std::int64_t layer);
  ~LlamaAttentionImpl() override;
  void reset() override;

  /// x: [N, T, hidden_size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x, const detail::CausalPass& pass);

  nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  nn::RMSNorm q_norm{nullptr}, k_norm{nullptr};  ///< of each head; qwen3, else empty
  nn::Dropout dropout{nullptr};                  ///< empty at an attention_dropout of 0

 private:
  LlamaOptions options_;
  std::int64_t layer_;
};
TORCH_MODULE(LlamaAttention);

/// The feed-forward half of a layer, SwiGLU: `down(act(gate(x)) * up(x))`.
class LlamaMLPImpl : public torch::nn::Cloneable<LlamaMLPImpl> {
 public:
  explicit LlamaMLPImpl(const LlamaOptions& options);
  ~LlamaMLPImpl() override;
  void reset() override;

  /// x: [N, T, hidden_size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x);

  nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};

 private:
  LlamaOptions options_;
};
TORCH_MODULE(LlamaMLP);

/// One layer: attention, then feed-forward, each on the normalised input and added to it.
class LlamaDecoderLayerImpl : public torch::nn::Cloneable<LlamaDecoderLayerImpl>, public nn::Block {
 public:
  LlamaDecoderLayerImpl(const LlamaOptions& options, std::int64_t layer);
  ~LlamaDecoderLayerImpl() override;
  void reset() override;

  /// x: [N, T, hidden_size]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x, const detail::CausalPass& pass);

  LlamaAttention self_attn{nullptr};
  LlamaMLP mlp{nullptr};
  nn::RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};

 private:
  LlamaOptions options_;
  std::int64_t layer_;
};
TORCH_MODULE(LlamaDecoderLayer);

}  // namespace tutti::models

/// The Llama family of language models: Llama 1 to 3, Mistral, Qwen 2 and 2.5, Qwen 3.
///
/// Names of parameters are Hugging Face's, so their weights load unchanged. Layers are those of
/// tutti::nn, so that surgery reaches them.
/// Source: Touvron et al., "LLaMA", 2023; Jiang et al., "Mistral 7B", 2023; Hugging Face
/// Transformers, `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM`.
namespace tutti::models {

/// A Llama without a head: token indices to vectors.
class LlamaModelImpl : public torch::nn::Cloneable<LlamaModelImpl>,
                       public nn::CheckpointsBlocks,
                       public nn::ContextLimited {
 public:
  /// Throws c10::Error (ValueError) as LlamaOptions::validate(), and for parameters of RoPE.
  explicit LlamaModelImpl(const LlamaOptions& options);
  ~LlamaModelImpl() override;
  void reset() override;

  /// Returns [N, T, hidden_size]. A cache in `pass` counts the tokens as read.
  at::Tensor forward(detail::CausalPass pass);

  /// Layer i of num_hidden_layers.
  LlamaDecoderLayerImpl& layer(std::size_t i) { return layers->at<LlamaDecoderLayerImpl>(i); }

  /// max_position_embeddings, or what `factor` of a scaled RoPE makes of those of the first
  /// training, if that is more.
  [[nodiscard]] std::int64_t context_length() const override { return options_.context_length(); }

  /// Which frequencies queries and keys turn with.
  [[nodiscard]] const nn::Rotary& rotary() const { return rotary_; }

  nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};  ///< LlamaDecoderLayer
  nn::RMSNorm norm{nullptr};

 private:
  LlamaOptions options_;
  nn::Rotary rotary_;
};
TORCH_MODULE(LlamaModel);

/// A Llama as a Model and a CausalLM: the logits of the next token.
///
///     auto net = tutti::models::LlamaForCausalLM(tutti::models::LlamaOptions{.vocab_size = 512});
///     tutti::Trainer trainer{net.ptr(), ...};
///
/// Its metrics are LanguageCrossEntropy and LanguagePerplexity.
class LlamaForCausalLMImpl : public torch::nn::Cloneable<LlamaForCausalLMImpl>,
                             public CausalLanguageModel,
                             public detail::HasTokenHead {
 public:
  using Options = LlamaOptions;
  using model_features = types<takes_tokens, loss_takes_indices>;

  /// Throws c10::Error (ValueError) as LlamaModel.
  explicit LlamaForCausalLMImpl(const LlamaOptions& options = {});
  ~LlamaForCausalLMImpl() override;
  void reset() override;

  /// batch: `input_ids` [N, T]; `attention_mask` [N, T], 0 for padding, `position_ids`, and
  /// `sequence_id` of packed sequences where they matter. Returns logits [N, T, vocab_size]; those
  /// of position i are for token i + 1.
  Outputs forward(const Batch& batch);

  /// The logits for tokens that may go on from a cache: [N, T or 1, vocab_size].
  at::Tensor logits(const CausalInput& input) override;

  /// An empty cache for `batch` sequences of at most `max_length` tokens.
  [[nodiscard]] nn::KeyValueCache make_cache(std::int64_t batch,
                                             std::int64_t max_length) const override;

  [[nodiscard]] std::int64_t vocab_size() const override { return options_.vocab_size; }

  /// The mean cross entropy of the tokens after the first; `labels` [N, T] are those of the inputs,
  /// and -100 is left out.
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const {
    return loss_of(outputs.tensor(), detail::next_tokens(batch));
  }

  /// The same for each sequence: [N].
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    return losses_of(outputs.tensor(), detail::next_tokens(batch));
  }

  static Metrics metrics(bool train);
  void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) const {
    metric.update(all_logits(outputs.tensor()), detail::next_tokens(batch));
  }

  /// Keeps only the inputs of the layers for the backward pass, see nn::CheckpointsBlocks.
  void set_activation_checkpointing(bool on) { model->set_activation_checkpointing(on); }

  /// The options of a Hugging Face folder. Throws c10::Error (ValueError) naming a key that changes
  /// the computation and has a value that is not supported.
  static LlamaOptions options_from(const PretrainedConfig& config) {
    return detail::llama_options(config);
  }

  /// What config.json has to say; keys of source_config stay.
  [[nodiscard]] PretrainedConfig config() const;

  /// How the weights stand in a file.
  [[nodiscard]] WeightLayout weight_layout() const;

  [[nodiscard]] const LlamaOptions& options() const { return options_; }

  LlamaModel model{nullptr};
  nn::Linear lm_head{nullptr};       ///< empty where the table of the tokens is the head's matrix
  PretrainedConfig source_config{};  ///< the config.json that it was made from, if any

 private:
  at::Tensor head(const at::Tensor& x);

  LlamaOptions options_;
};
TORCH_MODULE(LlamaForCausalLM);

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/llama.inl.hpp>
#endif
