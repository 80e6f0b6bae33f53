// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/residual_block.hpp>
#include <tutti/models/vision_layout.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/cloneable.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/sequential.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>

/// Vision transformers: images cut into patches, which a transformer reads as a sequence.
///
/// Parameter names and order are torchvision's; weight_layout() has those of timm's and Hugging
/// Face's files. Layers are those of tutti::nn, so that surgery reaches them, but for the packed
/// projection of attention, which is a parameter there too.
/// Source: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition
/// at Scale", ICLR 2021; torchvision, `VisionTransformer`; timm, `VisionTransformer`; Hugging Face
/// Transformers, `ViTForImageClassification`.
namespace tutti::models {

/// What the logits of a vision transformer are computed from; timm's `global_pool`.
enum class VitPool : std::uint8_t {
  token,  ///< the class token
  avg,    ///< the mean over the patches, the class token left out
};

/// The shape of a vision transformer; the defaults are ViT-B/16's. Fields as torchvision's, then
/// those that files of timm and Hugging Face can have too, by timm's names where it has one.
struct VisionTransformerOptions {
  std::int64_t image_size = 224;  ///< sides of the images in pixels; a multiple of patch_size
  std::int64_t patch_size = 16;   ///< sides of a patch in pixels
  std::int64_t num_layers = 12;
  std::int64_t num_heads = 12;
  std::int64_t hidden_dim = 768;  ///< width; a multiple of num_heads
  std::int64_t mlp_dim = 3072;    ///< width of the feed-forward half
  double dropout = 0;             ///< after the positions, attention and both feed-forward layers
  double attention_dropout = 0;   ///< of the attention's probabilities
  std::int64_t num_classes = 1000;
  std::int64_t representation_size = 0;  ///< of a tanh layer before the last one; 0: none
  std::int64_t in_channels = 3;
  bool qkv_bias = true;                  ///< queries, keys and values have a bias
  double init_values = 0;                ///< LayerScale begins with it; 0: there is none
  VitPool global_pool = VitPool::token;  ///< avg needs no class token
  std::optional<bool> fc_norm{};         ///< normalise what was pooled, not the tokens before; not
                                         ///< set: with avg
  bool class_token = true;               ///< before the patches; its position is the first
  double layer_norm_eps = 1e-6;          ///< Hugging Face's default is 1e-12
  nn::Activation hidden_act = nn::Activation::gelu;
  std::optional<double> activation_dropout{};       ///< after the activation; not set: dropout
  std::optional<double> position_dropout{};         ///< after the positions; not set: dropout
  double head_dropout = 0;                          ///< before the last layer
  VisionLayout layout = VisionLayout::torchvision;  ///< of files, until set_layout()

  friend bool operator==(const VisionTransformerOptions&,
                         const VisionTransformerOptions&) = default;
};

namespace detail {

inline nn::LayerNorm vit_norm(const VisionTransformerOptions& options) {
  return nn::LayerNorm(
      torch::nn::LayerNormOptions({options.hidden_dim}).eps(options.layer_norm_eps));
}

inline torch::nn::AnyModule activation_module(nn::Activation activation) {
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

// Weights that keep the size of what comes in from `inputs` numbers, and no biases. They are normal
// but for none beyond -2 and 2, as torch.nn.init.trunc_normal_ draws them.
template <class Layer>
void keep_size(Layer& layer, std::int64_t inputs) {
  const c10::AutoGradMode no_grad(false);
  const double deviation = std::sqrt(1 / static_cast<double>(inputs));
  const double edge = std::erf(2 / (deviation * std::sqrt(2.0)));
  layer.weight.uniform_(-edge, edge).erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-2, 2);
  layer.bias.zero_();
}

}  // namespace detail

/// Attention of a block, with torch.nn.MultiheadAttention's names: `in_proj_weight`,
/// `in_proj_bias`, `out_proj`.
class VitAttentionImpl : public nn::Cloneable<VitAttentionImpl>, public nn::HeadedAttention {
 public:
  ~VitAttentionImpl() override;
  explicit VitAttentionImpl(const VisionTransformerOptions& options)
      : nn::HeadedAttention(options.num_heads, /*causal=*/false), options_(options) {
    reset();
  }

  void reset() override;

  /// x: [N, T, hidden_dim]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x);

  at::Tensor in_proj_weight;  ///< of queries, keys and values, [3 * hidden_dim, hidden_dim]
  at::Tensor in_proj_bias;    ///< [3 * hidden_dim]; undefined without qkv_bias
  nn::Linear out_proj{nullptr};
  nn::Dropout dropout{nullptr};  ///< empty at an attention_dropout of 0

 private:
  VisionTransformerOptions options_;
};
TORCH_MODULE(VitAttention);

/// Scales each channel by a learned number.
///
/// Source: Touvron et al., "Going deeper with Image Transformers", ICCV 2021.
class LayerScaleImpl : public nn::Cloneable<LayerScaleImpl> {
 public:
  ~LayerScaleImpl() override;
  LayerScaleImpl(std::int64_t width, double init_values)
      : width_(width), init_values_(init_values) {
    reset();
  }

  void reset() override { gamma = register_parameter("gamma", at::full({width_}, init_values_)); }

  /// x: [..., width]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x) { return x * gamma; }

  at::Tensor gamma;  ///< [width]

 private:
  std::int64_t width_;
  double init_values_;
};
TORCH_MODULE(LayerScale);

/// One layer: attention, then feed-forward, each on the normalised input and added to it.
///
/// As a ResidualBlock it is left out as a whole. No parameters scale its residual alone, since the
/// feed-forward reads the sum with the whole attention.
class VitBlockImpl : public torch::nn::Cloneable<VitBlockImpl>, public ResidualBlock {
 public:
  ~VitBlockImpl() override;
  explicit VitBlockImpl(const VisionTransformerOptions& options) : options_(options) { reset(); }

  void reset() override;

  /// x: [N, T, hidden_dim]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x) { return joined(x); }

  at::Tensor whole(const at::Tensor& x) override;
  at::Tensor residual(const at::Tensor& x) override;
  at::Tensor shortcut(const at::Tensor& x) override { return x; }
  [[nodiscard]] bool projects() const override { return false; }
  at::Tensor finish(const at::Tensor& sum) override { return sum; }

  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  VitAttention self_attention{nullptr};
  nn::Dropout dropout{nullptr};
  nn::Sequential mlp{nullptr};            ///< Linear, GELU, Dropout, Linear, Dropout
  LayerScale ls1{nullptr}, ls2{nullptr};  ///< of attention and feed-forward; empty at 0

 private:
  at::Tensor attention(const at::Tensor& x);
  at::Tensor feed_forward(const at::Tensor& x);

  VisionTransformerOptions options_;
};
TORCH_MODULE(VitBlock);

/// The embedding of positions, the blocks, and a normalisation.
class VitEncoderImpl : public nn::Cloneable<VitEncoderImpl> {
 public:
  ~VitEncoderImpl() override;
  explicit VitEncoderImpl(const VisionTransformerOptions& options) : options_(options) { reset(); }

  void reset() override;

  /// x: [N, T, hidden_dim], T as many as there are positions. Returns the same shape.
  at::Tensor forward(const at::Tensor& x);

  at::Tensor pos_embedding;  ///< [1, T, hidden_dim]: the class token, then the patches by rows
  nn::Dropout dropout{nullptr};
  nn::Sequential layers{nullptr};  ///< VitBlock, `encoder_layer_0` first
  nn::LayerNorm ln{nullptr};       ///< empty with fc_norm

 private:
  VisionTransformerOptions options_;
};
TORCH_MODULE(VitEncoder);

/// A vision transformer, which gives images logits; for a Classifier.
///
///     auto net = tutti::models::vit_b_16({.image_size = 224, .num_classes = 10});
///     tutti::Classifier model{net, {.num_classes = 10}};
///
/// All images have the size that it was made for. The last layer starts with zeros, so that the
/// first logits are zeros too. from_pretrained() makes one from a folder of timm or Hugging Face,
/// load_pretrained() reads a file of torchvision:
///
///     auto net = tutti::models::vit_b_16();
///     tutti::models::load_pretrained(net->weight_layout(), "vit_b_16.pth");
///
class VisionTransformerImpl : public nn::Cloneable<VisionTransformerImpl> {
 public:
  ~VisionTransformerImpl() override;
  using model_features = types<takes_images, fixed_input_size, has_residual_blocks>;

  /// Throws c10::Error (ValueError) for sizes that do not divide as they should or are below 1.
  explicit VisionTransformerImpl(const VisionTransformerOptions& options = {});

  void reset() override;

  /// x: [N, in_channels, image_size, image_size]. Returns [N, num_classes], logits.
  /// Throws c10::Error for images of another shape.
  at::Tensor forward(const at::Tensor& x) { return heads(pooled(encoder(tokens(x)))); }

  nn::Conv2d conv_proj{nullptr};  ///< patches to vectors
  at::Tensor class_token;         ///< [1, 1, hidden_dim]; undefined without one
  VitEncoder encoder{nullptr};
  nn::LayerNorm fc_norm{nullptr};  ///< of what was pooled; empty without fc_norm
  nn::Sequential heads{nullptr};   ///< `head`; before it `pre_logits`, `act`, `drop` if there are

  [[nodiscard]] const VisionTransformerOptions& options() const { return options_; }

  /// The options that a config.json says: of `vit` of Transformers, of timm with one of the
  /// architectures vit_{tiny,small,medium,base,large,huge}_patchN_SIZE and deit_*, or of a call of
  /// torchvision. Throws c10::Error (ValueError) for every key that changes the computation and
  /// has a value that is not supported, by name and value.
  static VisionTransformerOptions options_from(const PretrainedConfig& config);

  /// Whose files save_pretrained() writes: those that the model was read from, else torchvision's.
  void set_layout(VisionLayout layout) { options_.layout = layout; }

  /// How the weights stand in that library's files. Positions of another grid are resized as the
  /// library does it: bicubic, with antialiasing in timm, without it in Hugging Face, with aligned
  /// corners in torchvision. Throws c10::Error (ValueError) when the library has no such layer.
  [[nodiscard]] WeightLayout weight_layout() const { return weight_layout(options_.layout); }
  [[nodiscard]] WeightLayout weight_layout(VisionLayout layout) const;

  /// The config.json that stands beside files of that layout; keys of source_config stay.
  /// Throws c10::Error (ValueError), naming the options, when it cannot express this model.
  [[nodiscard]] PretrainedConfig config() const;

  PretrainedConfig source_config;  ///< what it was made from; empty: nothing

 private:
  // The class token and one token for each patch: [N, 1 + patches, hidden_dim].
  at::Tensor tokens(const at::Tensor& x);
  // One vector for each image: [N, hidden_dim].
  at::Tensor pooled(const at::Tensor& x);

  VisionTransformerOptions options_;
};
TORCH_MODULE(VisionTransformer);

inline VisionTransformerImpl::VisionTransformerImpl(const VisionTransformerOptions& options)
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

inline void VisionTransformerImpl::reset() {
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

inline at::Tensor VisionTransformerImpl::tokens(const at::Tensor& x) {
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

inline at::Tensor VisionTransformerImpl::pooled(const at::Tensor& x) {
  const std::int64_t first = class_token.defined() ? 1 : 0;
  const at::Tensor y = options_.global_pool == VitPool::token
                           ? x.select(1, 0)
                           : x.narrow(1, first, x.size(1) - first).mean(1);
  return fc_norm ? fc_norm(y) : y;
}

namespace detail {

VisionTransformer vit_base(VisionTransformerOptions options, std::int64_t patch_size);

VisionTransformer vit_large(VisionTransformerOptions options, std::int64_t patch_size);

}  // namespace detail

/// ViT-B/16: 86.6 million parameters. Patches, layers, heads and widths of the options are
/// overwritten, as in all these functions.
inline VisionTransformer vit_b_16(const VisionTransformerOptions& options = {}) {
  return detail::vit_base(options, 16);
}

/// ViT-B/32: 88.2 million parameters.
inline VisionTransformer vit_b_32(const VisionTransformerOptions& options = {}) {
  return detail::vit_base(options, 32);
}

/// ViT-L/16: 304.3 million parameters.
inline VisionTransformer vit_l_16(const VisionTransformerOptions& options = {}) {
  return detail::vit_large(options, 16);
}

/// ViT-L/32: 306.5 million parameters.
inline VisionTransformer vit_l_32(const VisionTransformerOptions& options = {}) {
  return detail::vit_large(options, 32);
}

/// ViT-H/14: 632.0 million parameters.
VisionTransformer vit_h_14(VisionTransformerOptions options = {});

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/vit.inl.hpp>
#endif

#include <tutti/models/detail/vit_pretrained.hpp>  // weight_layout(), options_from(), config()
