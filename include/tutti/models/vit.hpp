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

nn::LayerNorm vit_norm(const VisionTransformerOptions& options);

torch::nn::AnyModule activation_module(nn::Activation activation);

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
  explicit VitAttentionImpl(const VisionTransformerOptions& options);

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
  LayerScaleImpl(std::int64_t width, double init_values);

  void reset() override;

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
  explicit VitBlockImpl(const VisionTransformerOptions& options);

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
  explicit VitEncoderImpl(const VisionTransformerOptions& options);

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
