// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/make_metrics.hpp>
#include <tutti/models/bert.hpp>

namespace tutti::models {

TUTTI_INLINE void BertEncoderImpl::reset() {
  layer = register_module("layer", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options_.num_hidden_layers; ++i) {
    layer->push_back(BertLayer(options_));
  }
}

TUTTI_INLINE at::Tensor BertEncoderImpl::forward(at::Tensor x, const nn::SeenKeys& keys) {
  for (std::size_t i = 0; i < layer->size(); ++i) {
    x = layer->at<BertLayerImpl>(i).forward(x, keys);
  }
  return x;
}

TUTTI_INLINE void BertModelImpl::reset() {
  embeddings = register_module("embeddings", BertEmbeddings(options_));
  encoder = register_module("encoder", BertEncoder(options_));
  if (pools_) {
    pooler = register_module("pooler", BertPooler(options_.hidden_size));
  }
  detail::initialize(*this, options_.initializer_range);
}

TUTTI_INLINE at::Tensor BertModelImpl::forward(const Batch& batch) {
  const at::Tensor keys = detail::seen_keys(detail::optional(batch, "attention_mask"),
                                            detail::optional(batch, "sequence_id"));
  return encoder(embeddings(batch), nn::SeenKeys(keys));
}

TUTTI_INLINE void BertTransformImpl::reset() {
  dense = register_module("dense", nn::Linear(options_.hidden_size, options_.hidden_size));
  layer_norm = register_module("LayerNorm", detail::bert_norm(options_));
}

TUTTI_INLINE void BertPredictionsImpl::reset() {
  bias = register_parameter("bias", at::zeros({options_.vocab_size}));
  transform = register_module("transform", BertTransform(options_));
  decoder = nullptr;
  if (!options_.tie_word_embeddings) {
    bias.set_requires_grad(false);
    decoder = register_module("decoder", nn::Linear(options_.hidden_size, options_.vocab_size));
  }
}

TUTTI_INLINE void BertForMaskedLMImpl::reset() {
  bert = register_module("bert", BertModel(options_, /*add_pooling_layer=*/false));
  cls = register_module("cls", BertHead(options_));
  detail::initialize(*cls, options_.initializer_range);
}

TUTTI_INLINE BertOptions BertForMaskedLMImpl::options_from(const PretrainedConfig& config) {
  BertOptions out = detail::bert_options(config);
  out.tie_word_embeddings = config.flag("tie_word_embeddings", true);
  return out;
}

TUTTI_INLINE PretrainedConfig BertForMaskedLMImpl::config() const {
  PretrainedConfig out = source_config;
  detail::write_bert_options(options_, "BertForMaskedLM", out);
  return out;
}

TUTTI_INLINE WeightLayout BertForMaskedLMImpl::weight_layout() const {
  WeightLayout layout = detail::bert_layout("BertForMaskedLM", *this);
  if (options_.tie_word_embeddings) {
    layout.tied = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                   {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  }
  layout.left_out = {"cls.seq_relationship.*", "bert.pooler.*"};
  layout.may_be_missing = {"cls."};
  return layout;
}

TUTTI_INLINE void BertForSequenceClassificationImpl::reset() {
  bert = register_module("bert", BertModel(options_));
  dropout = register_module(
      "dropout", nn::Dropout(options_.classifier_dropout.value_or(options_.hidden_dropout_prob)));
  classifier = register_module("classifier", nn::Linear(options_.hidden_size, num_labels));
  torch::nn::init::normal_(classifier->weight, 0, options_.initializer_range);
  torch::nn::init::zeros_(classifier->bias);
}

TUTTI_INLINE Loss BertForSequenceClassificationImpl::loss(const Outputs& outputs,
                                                          const Batch& batch) const {
  const at::Tensor& labels = batch.targets();
  return num_labels == 1
             ? at::mse_loss(outputs.tensor().flatten(), labels.flatten().to(outputs.tensor()))
             : functional::soft_cross_entropy(outputs.tensor(), labels);
}

TUTTI_INLINE at::Tensor BertForSequenceClassificationImpl::sample_losses(const Outputs& outputs,
                                                                         const Batch& batch) const {
  const at::Tensor& y = outputs.tensor();
  return num_labels == 1
             ? (y.flatten() - batch.targets().flatten().to(y)).pow(2)
             : functional::soft_cross_entropy(y, batch.targets(), {}, -100, Reduction::none);
}

TUTTI_INLINE Metrics BertForSequenceClassificationImpl::metrics(bool /*train*/) const {
  return num_labels == 1
             ? make_metrics(MeanSquaredError{})
             : make_metrics(CrossEntropy{}, MulticlassAccuracy{{.num_classes = num_labels}});
}

TUTTI_INLINE void BertForSequenceClassificationImpl::update_metric(const Batch& batch,
                                                                   const Outputs& outputs,
                                                                   Metric& metric) const {
  const at::Tensor& y = outputs.tensor();
  if (num_labels == 1) {
    metric.update(y.flatten(), batch.targets().flatten().to(y));
  } else {
    metric.update(y, batch.targets());
  }
}

TUTTI_INLINE BertOptions
BertForSequenceClassificationImpl::options_from(const PretrainedConfig& config) {
  config.only("problem_type",
              {config.num_labels() == 1 ? "regression" : "single_label_classification"});
  return detail::bert_options(config);
}

TUTTI_INLINE PretrainedConfig BertForSequenceClassificationImpl::config() const {
  PretrainedConfig out = source_config;
  detail::write_bert_options(options_, "BertForSequenceClassification", out);
  if (!out.has("id2label") || out.num_labels() != num_labels) {
    detail::write_labels(num_labels, out);
  }
  return out;
}

TUTTI_INLINE WeightLayout BertForSequenceClassificationImpl::weight_layout() const {
  WeightLayout layout = detail::bert_layout("BertForSequenceClassification", *this);
  layout.left_out = {"cls.*"};
  layout.may_be_missing = {"classifier.", "bert.pooler."};
  return layout;
}

}  // namespace tutti::models

namespace tutti::models {

TUTTI_INLINE BertEncoderImpl::~BertEncoderImpl() = default;

TUTTI_INLINE BertEncoderImpl::BertEncoderImpl(const BertOptions& options) : options_(options) {
  reset();
}
TUTTI_INLINE BertPoolerImpl::~BertPoolerImpl() = default;

TUTTI_INLINE BertPoolerImpl::BertPoolerImpl(std::int64_t width) : width_(width) {
  reset();
}

TUTTI_INLINE void BertPoolerImpl::reset() {
  dense = register_module("dense", nn::Linear(width_, width_));
}
TUTTI_INLINE BertModelImpl::~BertModelImpl() = default;

TUTTI_INLINE BertModelImpl::BertModelImpl(const BertOptions& options, bool add_pooling_layer)
    : options_(options), pools_(add_pooling_layer) {
  TUTTI_CHECK_VALUE(
      options.num_attention_heads >= 1 && options.hidden_size % options.num_attention_heads == 0,
      "BERT: hidden_size is ", options.hidden_size, " and num_attention_heads ",
      options.num_attention_heads, ", expected a width that is a multiple of the heads");
  reset();
}
TUTTI_INLINE BertTransformImpl::~BertTransformImpl() = default;

TUTTI_INLINE BertTransformImpl::BertTransformImpl(const BertOptions& options) : options_(options) {
  reset();
}
TUTTI_INLINE BertPredictionsImpl::~BertPredictionsImpl() = default;

TUTTI_INLINE BertPredictionsImpl::BertPredictionsImpl(const BertOptions& options)
    : options_(options) {
  reset();
}
TUTTI_INLINE BertHeadImpl::~BertHeadImpl() = default;

TUTTI_INLINE BertHeadImpl::BertHeadImpl(const BertOptions& options) : options_(options) {
  reset();
}

TUTTI_INLINE void BertHeadImpl::reset() {
  predictions = register_module("predictions", BertPredictions(options_));
}
TUTTI_INLINE BertForMaskedLMImpl::~BertForMaskedLMImpl() = default;

TUTTI_INLINE Metrics BertForMaskedLMImpl::metrics(bool) {
  return make_metrics(LanguageCrossEntropy{}, MaskedAccuracy{});
}

TUTTI_INLINE BertForMaskedLMImpl::BertForMaskedLMImpl(const BertOptions& options)
    : options_(options) {
  reset();
}
TUTTI_INLINE BertForSequenceClassificationImpl::~BertForSequenceClassificationImpl() = default;

TUTTI_INLINE BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(
    const BertOptions& options, std::int64_t labels)
    : num_labels(labels), options_(options) {
  reset();
}

}  // namespace tutti::models
