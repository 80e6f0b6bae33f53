// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/vit.hpp>

namespace tutti::models {

namespace detail {

TUTTI_INLINE nn::LayerNorm vit_norm(const VisionTransformerOptions& options) {
  return nn::LayerNorm(
      torch::nn::LayerNormOptions({options.hidden_dim}).eps(options.layer_norm_eps));
}

TUTTI_INLINE torch::nn::AnyModule activation_module(nn::Activation activation) {
  switch (activation) {
    case nn::Activation::gelu:
      return torch::nn::AnyModule(torch::nn::GELU());
    case nn::Activation::gelu_new:
      return torch::nn::AnyModule(torch::nn::GELU(torch::nn::GELUOptions().approximate("tanh")));
    case nn::Activation::relu:
      return torch::nn::AnyModule(torch::nn::ReLU());
    case nn::Activation::silu:
      return torch::nn::AnyModule(torch::nn::SiLU());
    default:
      return torch::nn::AnyModule(torch::nn::Functional(
          [activation](const at::Tensor& x) { return nn::activate(activation, x); }));
  }
}

}  // namespace detail

TUTTI_INLINE VisionTransformerImpl::VisionTransformerImpl(const VisionTransformerOptions& options)
    : options_(options) {
  using Size = std::pair<const char*, std::int64_t>;
  for (const auto& [name, size] : {Size{"image_size", options.image_size},
                                   {"patch_size", options.patch_size},
                                   {"num_layers", options.num_layers},
                                   {"num_heads", options.num_heads},
                                   {"hidden_dim", options.hidden_dim},
                                   {"mlp_dim", options.mlp_dim},
                                   {"num_classes", options.num_classes},
                                   {"in_channels", options.in_channels}}) {
    TUTTI_CHECK_VALUE(size >= 1, "VisionTransformer: ", name, " is ", size, ", expected 1 or more");
  }
  TUTTI_CHECK_VALUE(options.representation_size >= 0, "VisionTransformer: representation_size is ",
                    options.representation_size, ", expected 1 or more, or 0 for none");
  // The others leave the pixels out that make no whole patch.
  const bool whole_patches =
      options.image_size % options.patch_size == 0 ||
      (options.layout != VisionLayout::torchvision && options.image_size > options.patch_size);
  TUTTI_CHECK_VALUE(whole_patches, "VisionTransformer: image_size is ", options.image_size,
                    " and patch_size ", options.patch_size, ", expected images of whole patches");
  TUTTI_CHECK_VALUE(options.class_token || options.global_pool == VitPool::avg,
                    "VisionTransformer: class_token is false and global_pool is token, expected a "
                    "class token, or global_pool = VitPool::avg");
  TUTTI_CHECK_VALUE(options.hidden_dim % options.num_heads == 0,
                    "VisionTransformer: hidden_dim is ", options.hidden_dim, " and num_heads ",
                    options.num_heads, ", expected a width that is a multiple of the heads");
  reset();
}

TUTTI_INLINE void VisionTransformerImpl::reset() {
  const std::int64_t patch = options_.patch_size;
  class_token = options_.class_token
                    ? register_parameter("class_token", at::zeros({1, 1, options_.hidden_dim}))
                    : at::Tensor();
  const auto cut =
      torch::nn::Conv2dOptions(options_.in_channels, options_.hidden_dim, patch).stride(patch);
  conv_proj = register_module("conv_proj", nn::Conv2d(cut));
  encoder = register_module("encoder", VitEncoder(options_));
  if (!encoder->ln) {
    fc_norm = register_module("fc_norm", detail::vit_norm(options_));
  }
  heads = register_module("heads", nn::Sequential());
  std::int64_t width = options_.hidden_dim;
  nn::Linear pre_logits{nullptr};
  if (options_.representation_size != 0) {
    pre_logits = nn::Linear(width, options_.representation_size);
    heads->push_back("pre_logits", pre_logits);
    heads->push_back("act", torch::nn::Tanh());
    width = options_.representation_size;
  }
  if (options_.head_dropout != 0) {
    heads->push_back("drop", nn::Dropout(options_.head_dropout));
  }
  const nn::Linear head(width, options_.num_classes);
  heads->push_back("head", head);

  detail::keep_size(*conv_proj, options_.in_channels * patch * patch);
  if (pre_logits) {
    detail::keep_size(*pre_logits, options_.hidden_dim);
  }
  torch::nn::init::zeros_(head->weight);
  torch::nn::init::zeros_(head->bias);
}

TUTTI_INLINE at::Tensor VisionTransformerImpl::tokens(const at::Tensor& x) {
  const std::int64_t size = options_.image_size;
  const std::int64_t channels = options_.in_channels;
  TUTTI_CHECK(x.dim() == 4 && x.size(1) == channels && x.size(2) == size && x.size(3) == size,
              "VisionTransformer: the images are ", x.sizes(), ", expected [N, ", channels, ", ",
              size, ", ", size,
              "]; resize them, or make the model with their image_size and in_channels");
  const at::Tensor patches = conv_proj(x).flatten(2).transpose(1, 2);
  return class_token.defined() ? at::cat({class_token.expand({x.size(0), -1, -1}), patches}, 1)
                               : patches;
}

TUTTI_INLINE at::Tensor VisionTransformerImpl::pooled(const at::Tensor& x) {
  const std::int64_t first = class_token.defined() ? 1 : 0;
  const at::Tensor y = options_.global_pool == VitPool::token
                           ? x.select(1, 0)
                           : x.narrow(1, first, x.size(1) - first).mean(1);
  return fc_norm ? fc_norm(y) : y;
}

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

TUTTI_INLINE VitAttentionImpl::VitAttentionImpl(const VisionTransformerOptions& options)
    : nn::HeadedAttention(options.num_heads, /*causal=*/false), options_(options) {
  reset();
}
TUTTI_INLINE VitBlockImpl::~VitBlockImpl() = default;

TUTTI_INLINE VitBlockImpl::VitBlockImpl(const VisionTransformerOptions& options)
    : options_(options) {
  reset();
}
TUTTI_INLINE VitEncoderImpl::~VitEncoderImpl() = default;

TUTTI_INLINE VitEncoderImpl::VitEncoderImpl(const VisionTransformerOptions& options)
    : options_(options) {
  reset();
}

}  // namespace tutti::models
