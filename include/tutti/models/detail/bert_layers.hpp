// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/gated_feed_forward.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>

#include <torch/nn/cloneable.h>

/// The parts of a BERT; include <tutti/models/bert.hpp>.
namespace tutti::models {

/// The shape of a BERT; the defaults are bert-base-uncased's. Fields as in `BertConfig`.
struct BertOptions {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  nn::Activation hidden_act = nn::Activation::gelu;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::optional<std::int64_t> pad_token_id = 0;   ///< whose embedding does not learn; none: all do
  std::optional<double> classifier_dropout = {};  ///< none: hidden_dropout_prob
  bool tie_word_embeddings = true;  ///< of masked tokens: the table is the head's matrix
};

namespace detail {

inline nn::LayerNorm bert_norm(const BertOptions& options) {
  return nn::LayerNorm(
      torch::nn::LayerNormOptions({options.hidden_size}).eps(options.layer_norm_eps));
}

}  // namespace detail

/// The sum of the embeddings of token, position and segment, normalised.
class BertEmbeddingsImpl : public torch::nn::Cloneable<BertEmbeddingsImpl>,
                           public nn::PositionEmbedded {
 public:
  ~BertEmbeddingsImpl() override;
  explicit BertEmbeddingsImpl(const BertOptions& options);

  void reset() override;

  /// batch: `input_ids` [N, T], and `token_type_ids` and `position_ids` [N, T] where they matter.
  at::Tensor forward(const Batch& batch);

  torch::nn::EmbeddingImpl& position_embedding() override { return *position_embeddings; }

  nn::Embedding word_embeddings{nullptr}, position_embeddings{nullptr},
      token_type_embeddings{nullptr};
  nn::LayerNorm layer_norm{nullptr};  ///< `LayerNorm` by name
  nn::Dropout dropout{nullptr};

 private:
  BertOptions options_;
};
TORCH_MODULE(BertEmbeddings);

/// Attention of a layer, without what follows it.
class BertSelfAttentionImpl : public torch::nn::Cloneable<BertSelfAttentionImpl>,
                              public nn::PositionBiased {
 public:
  ~BertSelfAttentionImpl() override;
  explicit BertSelfAttentionImpl(const BertOptions& options);

  void reset() override;

  /// x: [N, T, hidden_size]. keys: which are seen.
  at::Tensor forward(const at::Tensor& x, const nn::SeenKeys& keys) {
    return attend(split_heads(query(x)), split_heads(key(x)), split_heads(value(x)), keys, dropout);
  }

  nn::Linear query{nullptr}, key{nullptr}, value{nullptr};
  nn::Dropout dropout{nullptr};

 private:
  BertOptions options_;
};
TORCH_MODULE(BertSelfAttention);

/// What ends each half of a layer: `norm(dropout(dense(x)) + residual)`.
class BertResidualImpl : public torch::nn::Cloneable<BertResidualImpl> {
 public:
  ~BertResidualImpl() override;
  BertResidualImpl(const BertOptions& options, std::int64_t in);

  void reset() override;

  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) {
    return layer_norm(dropout(dense(x)) + residual);
  }

  nn::Linear dense{nullptr};
  nn::LayerNorm layer_norm{nullptr};
  nn::Dropout dropout{nullptr};

 private:
  BertOptions options_;
  std::int64_t in_;
};
TORCH_MODULE(BertResidual);

/// The first half of a layer.
class BertAttentionImpl : public torch::nn::Cloneable<BertAttentionImpl> {
 public:
  ~BertAttentionImpl() override;
  explicit BertAttentionImpl(const BertOptions& options);

  void reset() override;

  at::Tensor forward(const at::Tensor& x, const nn::SeenKeys& keys) {
    return output(self(x, keys), x);
  }

  BertSelfAttention self{nullptr};
  BertResidual output{nullptr};

 private:
  BertOptions options_;
};
TORCH_MODULE(BertAttention);

/// A linear layer and the nonlinearity.
class BertIntermediateImpl : public torch::nn::Cloneable<BertIntermediateImpl> {
 public:
  ~BertIntermediateImpl() override;
  explicit BertIntermediateImpl(const BertOptions& options);

  void reset() override;

  at::Tensor forward(const at::Tensor& x) { return nn::activate(options_.hidden_act, dense(x)); }

  nn::Linear dense{nullptr};

 private:
  BertOptions options_;
};
TORCH_MODULE(BertIntermediate);

/// One layer of BERT. GatedLinearUnits can exchange its second half.
class BertLayerImpl : public torch::nn::Cloneable<BertLayerImpl>,
                      public nn::GatedHost,
                      public nn::Block {
 public:
  ~BertLayerImpl() override;
  explicit BertLayerImpl(const BertOptions& options);

  void reset() override;

  at::Tensor forward(const at::Tensor& x, const nn::SeenKeys& keys);

  nn::FeedForwardParts feed_forward_parts() override {
    return {.up = intermediate->dense.ptr(),
            .down = output->dense.ptr(),
            .norm = output->layer_norm.ptr(),
            .dropout = options_.hidden_dropout_prob,
            .activation = options_.hidden_act,
            .initializer_range = options_.initializer_range};
  }
  [[nodiscard]] std::shared_ptr<nn::GatedFeedForwardImpl> gated() const override { return gated_; }
  void set_gated(std::shared_ptr<nn::GatedFeedForwardImpl> gated,
                 std::shared_ptr<torch::nn::IdentityImpl> identity) override;

  /// A deep copy. Throws c10::Error once the layer is gated.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (gated_) {
      nn::refuse_clone(*this);
    }
    return Cloneable::clone(device);
  }

  BertAttention attention{nullptr};
  BertIntermediate intermediate{nullptr};  ///< empty once the layer is gated
  BertResidual output{nullptr};            ///< likewise

 private:
  BertOptions options_;
  std::shared_ptr<nn::GatedFeedForwardImpl> gated_;
};
TORCH_MODULE(BertLayer);

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE void BertEmbeddingsImpl::reset() {
  const std::int64_t width = options_.hidden_size;
  word_embeddings = register_module(
      "word_embeddings", nn::Embedding(torch::nn::EmbeddingOptions(options_.vocab_size, width)
                                           .padding_idx(options_.pad_token_id)));
  position_embeddings = register_module("position_embeddings",
                                        nn::Embedding(options_.max_position_embeddings, width));
  token_type_embeddings =
      register_module("token_type_embeddings", nn::Embedding(options_.type_vocab_size, width));
  layer_norm = register_module("LayerNorm", detail::bert_norm(options_));
  dropout = register_module("dropout", nn::Dropout(options_.hidden_dropout_prob));
}

TUTTI_INLINE at::Tensor BertEmbeddingsImpl::forward(const Batch& batch) {
  const at::Tensor& ids = batch.inputs();
  const at::Tensor at = detail::positions(batch, position_embeddings->weight, "BERT");
  const at::Tensor types =
      batch.contains("token_type_ids") ? batch.at("token_type_ids") : at.new_zeros({1, 1});
  return dropout(
      layer_norm(word_embeddings(ids) + token_type_embeddings(types) + position_embeddings(at)));
}

TUTTI_INLINE void BertSelfAttentionImpl::reset() {
  const std::int64_t width = options_.hidden_size;
  query = register_module("query", nn::Linear(width, width));
  key = register_module("key", nn::Linear(width, width));
  value = register_module("value", nn::Linear(width, width));
  dropout = register_module("dropout", nn::Dropout(options_.attention_probs_dropout_prob));
}

TUTTI_INLINE void BertResidualImpl::reset() {
  dense = register_module("dense", nn::Linear(in_, options_.hidden_size));
  layer_norm = register_module("LayerNorm", detail::bert_norm(options_));
  dropout = register_module("dropout", nn::Dropout(options_.hidden_dropout_prob));
}

TUTTI_INLINE void BertAttentionImpl::reset() {
  self = register_module("self", BertSelfAttention(options_));
  output = register_module("output", BertResidual(options_, options_.hidden_size));
}

TUTTI_INLINE void BertLayerImpl::reset() {
  attention = register_module("attention", BertAttention(options_));
  intermediate = register_module("intermediate", BertIntermediate(options_));
  output = register_module("output", BertResidual(options_, options_.intermediate_size));
}

TUTTI_INLINE at::Tensor BertLayerImpl::forward(const at::Tensor& input, const nn::SeenKeys& keys) {
  return in_block(input, [this, keys](const at::Tensor& x) {
    const at::Tensor h = attention(x, keys);
    return gated_ ? gated_->forward(h, h) : output(intermediate(h), h);
  });
}

TUTTI_INLINE void BertLayerImpl::set_gated(std::shared_ptr<nn::GatedFeedForwardImpl> gated,
                                           std::shared_ptr<torch::nn::IdentityImpl> identity) {
  replace_module("intermediate", std::move(identity));
  replace_module("output", gated);
  intermediate = nullptr;
  output = nullptr;
  gated_ = std::move(gated);
}

}  // namespace tutti::models

namespace tutti::models {

TUTTI_INLINE BertEmbeddingsImpl::~BertEmbeddingsImpl() = default;

TUTTI_INLINE BertEmbeddingsImpl::BertEmbeddingsImpl(const BertOptions& options)
    : options_(options) {
  reset();
}
TUTTI_INLINE BertSelfAttentionImpl::~BertSelfAttentionImpl() = default;

TUTTI_INLINE BertSelfAttentionImpl::BertSelfAttentionImpl(const BertOptions& options)
    : nn::PositionBiased(options.num_attention_heads, /*causal=*/false), options_(options) {
  reset();
}
TUTTI_INLINE BertResidualImpl::~BertResidualImpl() = default;

TUTTI_INLINE BertResidualImpl::BertResidualImpl(const BertOptions& options, std::int64_t in)
    : options_(options), in_(in) {
  reset();
}
TUTTI_INLINE BertAttentionImpl::~BertAttentionImpl() = default;

TUTTI_INLINE BertAttentionImpl::BertAttentionImpl(const BertOptions& options) : options_(options) {
  reset();
}
TUTTI_INLINE BertIntermediateImpl::~BertIntermediateImpl() = default;

TUTTI_INLINE BertIntermediateImpl::BertIntermediateImpl(const BertOptions& options)
    : options_(options) {
  reset();
}

TUTTI_INLINE void BertIntermediateImpl::reset() {
  dense = register_module("dense", nn::Linear(options_.hidden_size, options_.intermediate_size));
}
TUTTI_INLINE BertLayerImpl::~BertLayerImpl() = default;

TUTTI_INLINE BertLayerImpl::BertLayerImpl(const BertOptions& options) : options_(options) {
  reset();
}

}  // namespace tutti::models

#endif
