// SPDX-License-Identifier: Apache-2.0
#pragma once

// The smallest model with all that a layout can say: a base model with a prefix, a weight that
// stands transposed on disk, an old name, a tie, a classifier, a buffer.

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>

struct TinyOptions {
  std::int64_t width = 3;
  std::int64_t labels = 2;
};

class TinyImpl : public torch::nn::Cloneable<TinyImpl> {
 public:
  explicit TinyImpl(const TinyOptions& options = {}) : options_(options) { reset(); }

  void reset() override {
    const std::int64_t w = options_.width;
    table = register_parameter("table", at::empty({5, w}).normal_());
    mix = register_module("mix", torch::nn::Linear(torch::nn::LinearOptions(w, 2).bias(false)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({w})));
    classifier = register_module("classifier", torch::nn::Linear(w, options_.labels));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }

  static TinyOptions options_from(const tutti::models::PretrainedConfig& config) {
    config.only("model_type", {"tiny"});
    return {.width = config.integer("width"), .labels = config.num_labels()};
  }

  tutti::models::WeightLayout weight_layout() const {
    tutti::models::WeightLayout layout{.model = "TinyForSequenceClassification"};
    layout.tied = {{"lm_head.weight", "base.table.weight"}};
    layout.base_prefix = "base.";
    layout.heads = {"lm_head.", "classifier.", "extra."};
    layout.renamed_ends = {{"LayerNorm.gamma", "LayerNorm.weight"},
                           {"LayerNorm.beta", "LayerNorm.bias"}};
    layout.left_out = {"extra.*"};
    layout.may_be_missing = {"classifier."};
    layout.refused = {{"*.q_norm.weight", "normalised queries are another architecture"}};
    layout.add("base.table.weight", table);
    layout.add("base.mix.weight", mix->weight.t());
    layout.add_module("base.LayerNorm.", *norm);
    layout.add("base.count", count);
    layout.add_module("classifier.", *classifier);
    return layout;
  }

  tutti::models::PretrainedConfig config() const {
    tutti::models::PretrainedConfig out = source_config;
    out.set("model_type", "tiny");
    out.set("width", options_.width);
    out.set_default("num_labels", options_.labels);
    return out;
  }

  at::Tensor table, count;
  torch::nn::Linear mix{nullptr}, classifier{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  tutti::models::PretrainedConfig source_config;

 private:
  TinyOptions options_;
};
TORCH_MODULE(Tiny);
