// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/model.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/cross_entropy.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/metrics/masked_accuracy.hpp>
#include <tutti/metrics/mean_squared_error.hpp>
#include <tutti/models/detail/bert_config.hpp>
#include <tutti/models/detail/bert_layers.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/cloneable.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>

#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>

/// BERT: a transformer that reads whole sequences, with heads that fill in masked tokens and that
/// classify sequences.
///
/// Names of parameters are Hugging Face's, so its weights load unchanged. Layers are those of
/// tutti::nn, so that surgery reaches them.
/// Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
/// Understanding", NAACL 2019; Hugging Face Transformers, `BertForMaskedLM`.
namespace tutti::models {

/// The layers one after the other.
class BertEncoderImpl : public torch::nn::Cloneable<BertEncoderImpl>, public nn::CheckpointsBlocks {
 public:
  ~BertEncoderImpl() override;
  explicit BertEncoderImpl(const BertOptions& options);

  void reset() override;

  /// x: [N, T, hidden_size]. keys: which are seen. Returns the same shape.
  at::Tensor forward(at::Tensor x, const nn::SeenKeys& keys);

  torch::nn::ModuleList layer{nullptr};  ///< the layers, BertLayer

 private:
  BertOptions options_;
};
TORCH_MODULE(BertEncoder);

/// What reads the first token's vector for a whole sequence.
class BertPoolerImpl : public torch::nn::Cloneable<BertPoolerImpl> {
 public:
  ~BertPoolerImpl() override;
  explicit BertPoolerImpl(std::int64_t width);
  void reset() override;

  /// x: [N, T, width]. Returns [N, width].
  at::Tensor forward(const at::Tensor& x) { return dense(x.select(1, 0)).tanh(); }

  nn::Linear dense{nullptr};

 private:
  std::int64_t width_;
};
TORCH_MODULE(BertPooler);

/// BERT without a head: token indices to vectors.
class BertModelImpl : public torch::nn::Cloneable<BertModelImpl> {
 public:
  ~BertModelImpl() override;
  /// Throws c10::Error (ValueError) for a width that the heads do not divide.
  explicit BertModelImpl(const BertOptions& options, bool add_pooling_layer = true);

  void reset() override;

  /// batch: `input_ids` [N, T]; `attention_mask` [N, T], 0 for padding, `token_type_ids`
  /// and `position_ids` [N, T] where they matter. Returns [N, T, hidden_size].
  at::Tensor forward(const Batch& batch);

  BertEmbeddings embeddings{nullptr};
  BertEncoder encoder{nullptr};
  BertPooler pooler{nullptr};  ///< empty without a pooling layer

 private:
  BertOptions options_;
  bool pools_;
};
TORCH_MODULE(BertModel);

/// What precedes the logits: `norm(act(dense(x)))`.
class BertTransformImpl : public torch::nn::Cloneable<BertTransformImpl> {
 public:
  ~BertTransformImpl() override;
  explicit BertTransformImpl(const BertOptions& options);

  void reset() override;

  at::Tensor forward(const at::Tensor& x) {
    return layer_norm(nn::activate(options_.hidden_act, dense(x)));
  }

  nn::Linear dense{nullptr};
  nn::LayerNorm layer_norm{nullptr};

 private:
  BertOptions options_;
};
TORCH_MODULE(BertTransform);

/// What turns vectors into logits of tokens: `dense`, nonlinearity, `LayerNorm`, then the table of
/// the tokens as a matrix, and `bias`; or a `decoder` of its own, with which that bias is idle.
class BertPredictionsImpl : public nn::Cloneable<BertPredictionsImpl> {
 public:
  ~BertPredictionsImpl() override;
  explicit BertPredictionsImpl(const BertOptions& options);

  void reset() override;

  /// x: [..., hidden_size]. table: [vocab_size, hidden_size]. Returns [..., vocab_size].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& table) {
    return decoder ? decoder(transform(x)) : at::linear(transform(x), table, bias);
  }

  at::Tensor bias;
  BertTransform transform{nullptr};
  nn::Linear decoder{nullptr};  ///< empty where the table of the tokens is the matrix

 private:
  BertOptions options_;
};
TORCH_MODULE(BertPredictions);

/// The module that Hugging Face puts around the predictions.
class BertHeadImpl : public torch::nn::Cloneable<BertHeadImpl> {
 public:
  ~BertHeadImpl() override;
  explicit BertHeadImpl(const BertOptions& options);
  void reset() override;

  BertPredictions predictions{nullptr};

 private:
  BertOptions options_;
};
TORCH_MODULE(BertHead);

/// BERT as a Model that fills in masked tokens.
///
///     auto model = tutti::models::BertForMaskedLM(tutti::models::BertOptions{...});
///     tutti::Trainer trainer{model.ptr(), ...};
///
/// Its metrics are LanguageCrossEntropy and MaskedAccuracy.
class BertForMaskedLMImpl : public torch::nn::Cloneable<BertForMaskedLMImpl>,
                            public detail::HasTokenHead {
 public:
  ~BertForMaskedLMImpl() override;
  using Options = BertOptions;
  using model_features = types<takes_tokens, has_attention, has_feed_forward, loss_takes_indices>;

  explicit BertForMaskedLMImpl(const BertOptions& options = {});

  void reset() override;

  /// batch: as BertModel's. Returns logits [N, T, vocab_size].
  Outputs forward(const Batch& batch) {
    const at::Tensor& table = bert->embeddings->word_embeddings->weight;
    BertPredictionsImpl& head = *cls->predictions;
    const at::Tensor x = bert(batch);
    if (!spread()) {
      return head.forward(x, table);
    }
    const bool own = bool(head.decoder);
    return given_logits(token_logits(head.transform(x), own ? head.decoder->weight : table,
                                     own ? head.decoder->bias : head.bias),
                        is_training());
  }

  /// The mean cross entropy of `labels` [N, T], of which -100 is left out.
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const {
    return loss_of(outputs.tensor(), batch.targets());
  }

  /// The same for each sequence: [N].
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    return losses_of(outputs.tensor(), batch.targets());
  }

  static Metrics metrics(bool /*train*/);
  void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) const {
    metric.update(all_logits(outputs.tensor()), batch.targets());
  }

  /// Keeps only the inputs of the layers for the backward pass, see nn::CheckpointsBlocks.
  void set_activation_checkpointing(bool on) { bert->encoder->set_activation_checkpointing(on); }

  /// The options of a Hugging Face folder. Throws c10::Error (ValueError) naming a key that changes
  /// the computation and has a value that is not supported.
  static BertOptions options_from(const PretrainedConfig& config);

  /// What config.json has to say; keys of source_config stay.
  [[nodiscard]] PretrainedConfig config() const;

  /// How the weights stand in a file.
  [[nodiscard]] WeightLayout weight_layout() const;

  [[nodiscard]] const BertOptions& options() const { return options_; }

  BertModel bert{nullptr};
  BertHead cls{nullptr};
  PretrainedConfig source_config{};  ///< the config.json that it was made from, if any

 private:
  BertOptions options_;
};
TORCH_MODULE(BertForMaskedLM);

/// BERT as a Model that classifies sequences, or with one label gives each a number.
///
/// Its metrics are CrossEntropy and MulticlassAccuracy; MeanSquaredError for a single label.
class BertForSequenceClassificationImpl
    : public torch::nn::Cloneable<BertForSequenceClassificationImpl> {
 public:
  ~BertForSequenceClassificationImpl() override;
  using Options = BertOptions;
  using model_features = types<takes_tokens, has_attention, has_feed_forward>;

  explicit BertForSequenceClassificationImpl(const BertOptions& options = {},
                                             std::int64_t labels = 2);

  void reset() override;

  /// batch: as BertModel's. Returns logits [N, num_labels].
  Outputs forward(const Batch& batch) { return classifier(dropout(bert->pooler(bert(batch)))); }

  /// Cross entropy of `labels`, classes [N] or their probabilities [N, num_labels]; with one label
  /// the mean squared error of numbers [N].
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const;

  /// The same for each sequence: [N].
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const;

  [[nodiscard]] Metrics metrics(bool /*train*/) const;
  void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) const;

  /// Keeps only the inputs of the layers for the backward pass, see nn::CheckpointsBlocks.
  void set_activation_checkpointing(bool on) { bert->encoder->set_activation_checkpointing(on); }

  /// The options of a Hugging Face folder. Throws c10::Error (ValueError) naming a key that changes
  /// the computation and has a value that is not supported.
  static BertOptions options_from(const PretrainedConfig& config);

  /// The model of a Hugging Face folder, with as many labels as it has, its weights yet to be read.
  static std::shared_ptr<BertForSequenceClassificationImpl> from_config(
      const PretrainedConfig& config) {
    return ::tutti::detail::make<BertForSequenceClassificationImpl>(options_from(config),
                                                                    config.num_labels());
  }

  /// What config.json has to say; keys of source_config stay.
  [[nodiscard]] PretrainedConfig config() const;

  /// How the weights stand in a file.
  [[nodiscard]] WeightLayout weight_layout() const;

  [[nodiscard]] const BertOptions& options() const { return options_; }

  BertModel bert{nullptr};
  nn::Dropout dropout{nullptr};
  nn::Linear classifier{nullptr};
  std::int64_t num_labels;
  PretrainedConfig source_config{};  ///< the config.json that it was made from, if any

 private:
  BertOptions options_;
};
TORCH_MODULE(BertForSequenceClassification);

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/bert.inl.hpp>
#endif
