// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/model.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/metrics/make_metrics.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/transposed_linear.hpp>

#include <ATen/ops/linear.h>
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
};

/// Masked attention of a block.
class GPT2AttentionImpl : public torch::nn::Cloneable<GPT2AttentionImpl>,
                          public nn::PositionBiased {
 public:
  ~GPT2AttentionImpl() override;
  explicit GPT2AttentionImpl(const GPT2Options& options)
      : nn::PositionBiased(options.n_head, /*causal=*/true), options_(options) {
    reset();
  }

  void reset() override {
    const std::int64_t width = options_.n_embd;
    c_attn = register_module("c_attn", nn::TransposedLinear(width, 3 * width));
    c_proj = register_module("c_proj", nn::TransposedLinear(width, width));
    attn_dropout = register_module("attn_dropout", nn::Dropout(options_.attn_pdrop));
    resid_dropout = register_module("resid_dropout", nn::Dropout(options_.resid_pdrop));
  }

  /// Queries, keys and values of x, [N, heads, T, D] each.
  std::vector<at::Tensor> heads_of(const at::Tensor& x) {
    std::vector<at::Tensor> parts = c_attn(x).chunk(3, -1);
    for (at::Tensor& part : parts) {
      part = split_heads(part);
    }
    return parts;
  }

  /// x: [N, T, n_embd]. keep: bool [N, 1, 1, T], keys that are seen; undefined: all.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& keep) {
    const auto qkv = heads_of(x);
    return resid_dropout(c_proj(attend(qkv[0], qkv[1], qkv[2], keep, attn_dropout)));
  }

  nn::TransposedLinear c_attn{nullptr}, c_proj{nullptr};
  nn::Dropout attn_dropout{nullptr}, resid_dropout{nullptr};

 private:
  GPT2Options options_;
};
TORCH_MODULE(GPT2Attention);

/// The feed-forward half of a block.
class GPT2MLPImpl : public torch::nn::Cloneable<GPT2MLPImpl> {
 public:
  ~GPT2MLPImpl() override;
  explicit GPT2MLPImpl(const GPT2Options& options) : options_(options) { reset(); }

  void reset() override {
    const std::int64_t inner = options_.n_inner > 0 ? options_.n_inner : 4 * options_.n_embd;
    c_fc = register_module("c_fc", nn::TransposedLinear(options_.n_embd, inner));
    c_proj = register_module("c_proj", nn::TransposedLinear(inner, options_.n_embd));
    dropout = register_module("dropout", nn::Dropout(options_.resid_pdrop));
  }

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
class GPT2BlockImpl : public torch::nn::Cloneable<GPT2BlockImpl> {
 public:
  ~GPT2BlockImpl() override;
  explicit GPT2BlockImpl(const GPT2Options& options) : options_(options) { reset(); }

  void reset() override {
    const auto norm =
        torch::nn::LayerNormOptions({options_.n_embd}).eps(options_.layer_norm_epsilon);
    ln_1 = register_module("ln_1", nn::LayerNorm(norm));
    attn = register_module("attn", GPT2Attention(options_));
    ln_2 = register_module("ln_2", nn::LayerNorm(norm));
    mlp = register_module("mlp", GPT2MLP(options_));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& keep) {
    const at::Tensor h = x + attn(ln_1(x), keep);
    return h + mlp(ln_2(h));
  }

  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  GPT2Attention attn{nullptr};
  GPT2MLP mlp{nullptr};

 private:
  GPT2Options options_;
};
TORCH_MODULE(GPT2Block);

/// GPT-2 without a head: token indices to vectors.
class GPT2ModelImpl : public torch::nn::Cloneable<GPT2ModelImpl>, public nn::PositionEmbedded {
 public:
  ~GPT2ModelImpl() override;
  explicit GPT2ModelImpl(const GPT2Options& options) : options_(options) { reset(); }

  void reset() override {
    wte = register_module("wte", nn::Embedding(options_.vocab_size, options_.n_embd));
    wpe = register_module("wpe", nn::Embedding(options_.n_positions, options_.n_embd));
    drop = register_module("drop", nn::Dropout(options_.embd_pdrop));
    h = register_module("h", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < options_.n_layer; ++i) {
      h->push_back(GPT2Block(options_));
    }
    const auto norm =
        torch::nn::LayerNormOptions({options_.n_embd}).eps(options_.layer_norm_epsilon);
    ln_f = register_module("ln_f", nn::LayerNorm(norm));
    detail::initialize(*this, options_.initializer_range);
    // Every block adds to the stream twice: the sum keeps its size.
    const double range =
        options_.initializer_range / std::sqrt(2.0 * static_cast<double>(options_.n_layer));
    for (std::size_t i = 0; i < h->size(); ++i) {
      GPT2BlockImpl& layer = block(i);
      torch::nn::init::normal_(layer.attn->c_attn->weight, 0, options_.initializer_range);
      torch::nn::init::normal_(layer.attn->c_proj->weight, 0, range);
      torch::nn::init::normal_(layer.mlp->c_fc->weight, 0, options_.initializer_range);
      torch::nn::init::normal_(layer.mlp->c_proj->weight, 0, range);
    }
  }

  /// batch: `input_ids` [N, T], and `attention_mask` [N, T], 0 for padding, where there is some.
  /// Returns [N, T, n_embd].
  at::Tensor forward(const Batch& batch) {
    const at::Tensor& ids = batch.inputs();
    const at::Tensor at = detail::positions(ids, wpe->weight, "GPT-2");
    at::Tensor x = drop(wte(ids) + wpe(at));
    const at::Tensor keep = detail::seen_keys(batch);
    for (std::size_t i = 0; i < h->size(); ++i) {
      x = block(i).forward(x, keep);
    }
    return ln_f(x);
  }

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

/// GPT-2 as a Model: the logits of the next token, with the table of the tokens as their matrix.
///
///     auto model = tutti::models::GPT2LMHeadModel(tutti::models::GPT2Options{.n_layer = 6});
///     tutti::Trainer trainer{model.ptr(), ...};
///
/// Its metrics are LanguageCrossEntropy and LanguagePerplexity.
class GPT2LMHeadModelImpl : public torch::nn::Cloneable<GPT2LMHeadModelImpl> {
 public:
  ~GPT2LMHeadModelImpl() override;
  using model_features = types<takes_tokens, has_attention, loss_takes_indices>;

  /// Throws c10::Error (ValueError) for a width that the heads do not divide.
  explicit GPT2LMHeadModelImpl(const GPT2Options& options = {}) : options_(options) {
    TUTTI_CHECK_VALUE(options.n_head >= 1 && options.n_embd % options.n_head == 0,
                      "GPT-2: n_embd is ", options.n_embd, " and n_head ", options.n_head,
                      ", expected a width that is a multiple of the heads");
    reset();
  }

  void reset() override { transformer = register_module("transformer", GPT2Model(options_)); }

  /// Returns logits [N, T, vocab_size]; those of position i are for token i + 1.
  Outputs forward(const Batch& batch) {
    return at::linear(transformer(batch), transformer->wte->weight);
  }

  /// The mean cross entropy of the tokens after the first; `labels` [N, T] are those of the inputs,
  /// and -100 is left out.
  static Loss loss(const Outputs& outputs, const Batch& batch) {
    return detail::token_loss(predictions(outputs), nexts(batch));
  }

  /// The same for each sequence: [N].
  static at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) {
    return detail::sequence_losses(predictions(outputs), nexts(batch));
  }

  static Metrics metrics(bool /*train*/) {
    return make_metrics(LanguageCrossEntropy{}, LanguagePerplexity{});
  }
  static void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) {
    metric.update(predictions(outputs), nexts(batch));
  }

  [[nodiscard]] const GPT2Options& options() const { return options_; }

  GPT2Model transformer{nullptr};

 private:
  static at::Tensor predictions(const Outputs& outputs) { return outputs.tensor().slice(1, 0, -1); }
  static at::Tensor nexts(const Batch& batch) { return batch.targets().slice(1, 1); }

  GPT2Options options_;
};
TORCH_MODULE(GPT2LMHeadModel);

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE GPT2AttentionImpl::~GPT2AttentionImpl() = default;
TUTTI_INLINE GPT2MLPImpl::~GPT2MLPImpl() = default;
TUTTI_INLINE GPT2BlockImpl::~GPT2BlockImpl() = default;
TUTTI_INLINE GPT2ModelImpl::~GPT2ModelImpl() = default;
TUTTI_INLINE GPT2LMHeadModelImpl::~GPT2LMHeadModelImpl() = default;

}  // namespace tutti::models

#endif
