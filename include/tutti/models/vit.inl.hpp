// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/vit.hpp>

namespace tutti::models {

TUTTI_INLINE void VitAttentionImpl::reset() {
  const std::int64_t width = options_.hidden_dim;
  in_proj_weight = register_parameter("in_proj_weight", at::empty({3 * width, width}));
  in_proj_bias =
      options_.qkv_bias ? register_parameter("in_proj_bias", at::zeros({3 * width})) : at::Tensor();
  out_proj = register_module("out_proj", nn::Linear(width, width));
  if (options_.attention_dropout != 0) {
    dropout = register_module("dropout", nn::Dropout(options_.attention_dropout));
  }
  torch::nn::init::xavier_uniform_(in_proj_weight);
  torch::nn::init::zeros_(out_proj->bias);
}

TUTTI_INLINE at::Tensor VitAttentionImpl::forward(const at::Tensor& x) {
  const auto qkv = at::linear(x, in_proj_weight, in_proj_bias).chunk(3, -1);
  return out_proj(
      attend(split_heads(qkv[0]), split_heads(qkv[1]), split_heads(qkv[2]), {}, dropout));
}

TUTTI_INLINE void VitBlockImpl::reset() {
  const std::int64_t width = options_.hidden_dim;
  ln_1 = register_module("ln_1", detail::vit_norm(options_));
  self_attention = register_module("self_attention", VitAttention(options_));
  dropout = register_module("dropout", nn::Dropout(options_.dropout));
  const bool scales = options_.init_values != 0;
  if (scales) {
    ls1 = register_module("ls1", LayerScale(width, options_.init_values));
  }
  ln_2 = register_module("ln_2", detail::vit_norm(options_));
  const nn::Linear up(width, options_.mlp_dim);
  const nn::Linear down(options_.mlp_dim, width);
  mlp = register_module("mlp", nn::Sequential());
  mlp->push_back(up);
  mlp->push_back(detail::activation_module(options_.hidden_act));
  mlp->push_back(nn::Dropout(options_.activation_dropout.value_or(options_.dropout)));
  mlp->push_back(down);
  mlp->push_back(nn::Dropout(options_.dropout));
  if (scales) {
    ls2 = register_module("ls2", LayerScale(width, options_.init_values));
  }
  for (const nn::Linear& layer : {up, down}) {
    torch::nn::init::xavier_uniform_(layer->weight);
    torch::nn::init::normal_(layer->bias, 0, 1e-6);
  }
}

TUTTI_INLINE at::Tensor VitBlockImpl::whole(const at::Tensor& x) {
  const at::Tensor h = x + attention(x);
  return h + feed_forward(h);
}

TUTTI_INLINE at::Tensor VitBlockImpl::residual(const at::Tensor& x) {
  const at::Tensor added = attention(x);
  return added.to(x.scalar_type()) + feed_forward(x + added);  // under autocast in x's type
}

TUTTI_INLINE at::Tensor VitBlockImpl::attention(const at::Tensor& x) {
  const at::Tensor y = dropout(self_attention(ln_1(x)));
  return ls1 ? ls1(y) : y;
}

TUTTI_INLINE at::Tensor VitBlockImpl::feed_forward(const at::Tensor& x) {
  const at::Tensor y = mlp(ln_2(x));
  return ls2 ? ls2(y) : y;
}

TUTTI_INLINE void VitEncoderImpl::reset() {
  const std::int64_t side = options_.image_size / options_.patch_size;
  const std::int64_t tokens = side * side + (options_.class_token ? 1 : 0);
  pos_embedding = register_parameter("pos_embedding", at::empty({1, tokens, options_.hidden_dim}));
  torch::nn::init::normal_(pos_embedding, 0, 0.02);
  dropout =
      register_module("dropout", nn::Dropout(options_.position_dropout.value_or(options_.dropout)));
  layers = register_module("layers", nn::Sequential());
  for (std::int64_t i = 0; i < options_.num_layers; ++i) {
    layers->push_back("encoder_layer_" + std::to_string(i), VitBlock(options_));
  }
  if (!options_.fc_norm.value_or(options_.global_pool == VitPool::avg)) {
    ln = register_module("ln", detail::vit_norm(options_));
  }
}

TUTTI_INLINE at::Tensor VitEncoderImpl::forward(const at::Tensor& x) {
  const at::Tensor y = layers(dropout(x + pos_embedding));
  return ln ? ln(y) : y;
}

}  // namespace tutti::models

namespace tutti::models::detail {

TUTTI_INLINE VisionTransformer vit_base(VisionTransformerOptions options, std::int64_t patch_size) {
  options.patch_size = patch_size;
  options.num_layers = 12;
  options.num_heads = 12;
  options.hidden_dim = 768;
  options.mlp_dim = 3072;
  return VisionTransformer(options);
}

TUTTI_INLINE VisionTransformer vit_large(VisionTransformerOptions options,
                                         std::int64_t patch_size) {
  options.patch_size = patch_size;
  options.num_layers = 24;
  options.num_heads = 16;
  options.hidden_dim = 1024;
  options.mlp_dim = 4096;
  return VisionTransformer(options);
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE VisionTransformer vit_h_14(VisionTransformerOptions options) {
  options.patch_size = 14;
  options.num_layers = 32;
  options.num_heads = 16;
  options.hidden_dim = 1280;
  options.mlp_dim = 5120;
  return VisionTransformer(options);
}

}  // namespace tutti::models

namespace tutti::models {

TUTTI_INLINE VisionTransformerImpl::~VisionTransformerImpl() = default;
TUTTI_INLINE VitAttentionImpl::~VitAttentionImpl() = default;
TUTTI_INLINE VitBlockImpl::~VitBlockImpl() = default;
TUTTI_INLINE VitEncoderImpl::~VitEncoderImpl() = default;

}  // namespace tutti::models
