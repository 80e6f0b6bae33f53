// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/residual_block.hpp>
#include <tutti/models/vision_layout.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/nn/sequential.hpp>

/// Residual networks for ImageNet and for small images.
///
/// Parameter names and order are torchvision's, which are timm's too; weight_layout() has those of
/// Hugging Face's files. All layers are replaceable.
/// Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; timm, `ResNet`;
/// Hugging Face Transformers, `ResNetForImageClassification`.
namespace tutti::models {

/// The shape of one block.
struct BlockOptions {
  std::int64_t in_channels = 64;
  std::int64_t width = 64;  ///< a basic block gives width channels, a bottleneck 4 * width
  std::int64_t stride = 1;
  std::int64_t groups = 1;                ///< bottleneck only: ResNeXt
  std::int64_t width_per_group = 64;      ///< bottleneck only: ResNeXt, wide ResNet
  bool downsample_in_bottleneck = false;  ///< bottleneck only: the stride is in the first 1x1
  nn::Activation hidden_act = nn::Activation::relu;  ///< behind the sum; inside it is relu
};

namespace detail {

// x, which it may overwrite.
inline at::Tensor activate_in_place(nn::Activation activation, const at::Tensor& x) {
  return activation == nn::Activation::relu ? x.relu_() : nn::activate(activation, x);
}

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1,
                std::int64_t groups = 1);

nn::Sequential projection(const BlockOptions& options, std::int64_t out);

}  // namespace detail

/// Two 3x3 convolutions; the stride is in the first.
class BasicBlockImpl : public torch::nn::Cloneable<BasicBlockImpl>, public ResidualBlock {
 public:
  ~BasicBlockImpl() override;
  static constexpr std::int64_t expansion = 1;

  explicit BasicBlockImpl(const BlockOptions& options);

  void reset() override;

  /// x: [N, in, H, W]. Returns [N, width, H / stride, W / stride].
  at::Tensor forward(const at::Tensor& x) { return joined(x); }

  at::Tensor residual(const at::Tensor& x) override { return bn2(conv2(bn1(conv1(x)).relu_())); }
  at::Tensor finish(const at::Tensor& x) override {
    return detail::activate_in_place(options_.hidden_act, x);
  }
  at::Tensor shortcut(const at::Tensor& x) override { return downsample ? downsample(x) : x; }
  [[nodiscard]] bool projects() const override { return bool(downsample); }
  [[nodiscard]] std::string_view layer_name() const override { return "ResNetBasicBlock"; }
  [[nodiscard]] std::vector<at::Tensor> residual_scale() const override {
    return {bn2->weight, bn2->bias};
  }

  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  nn::Sequential downsample{nullptr};  ///< empty where the shapes agree

 private:
  BlockOptions options_;
};
TORCH_MODULE(BasicBlock);

/// 1x1, 3x3 and 1x1 convolution; the stride is in the 3x3 one, as in torchvision ("ResNet v1.5"),
/// or in the first, as in the paper.
class BottleneckImpl : public torch::nn::Cloneable<BottleneckImpl>, public ResidualBlock {
 public:
  ~BottleneckImpl() override;
  static constexpr std::int64_t expansion = 4;

  explicit BottleneckImpl(const BlockOptions& options);

  void reset() override;

  /// x: [N, in, H, W]. Returns [N, 4 * width, H / stride, W / stride].
  at::Tensor forward(const at::Tensor& x) { return joined(x); }

  at::Tensor residual(const at::Tensor& x) override {
    return bn3(conv3(bn2(conv2(bn1(conv1(x)).relu_())).relu_()));
  }
  at::Tensor finish(const at::Tensor& x) override {
    return detail::activate_in_place(options_.hidden_act, x);
  }
  at::Tensor shortcut(const at::Tensor& x) override { return downsample ? downsample(x) : x; }
  [[nodiscard]] bool projects() const override { return bool(downsample); }
  [[nodiscard]] std::string_view layer_name() const override { return "ResNetBottleneck"; }
  [[nodiscard]] std::vector<at::Tensor> residual_scale() const override {
    return {bn3->weight, bn3->bias};
  }

  nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  nn::Sequential downsample{nullptr};  ///< empty where the shapes agree

 private:
  BlockOptions options_;
};
TORCH_MODULE(Bottleneck);

/// What comes before the first block.
enum class Stem : std::uint8_t {
  imagenet,  ///< 7x7 convolution with stride 2, then a 3x3 max-pool with stride 2
  small,     ///< 3x3 convolution with stride 1, for images of 8 to 64 pixels
};

/// Which blocks a network is made of.
enum class Block : std::uint8_t { basic, bottleneck };

/// The shape of a residual network. The lists have one entry per stage, of any number.
struct ResNetOptions {
  Block block = Block::basic;
  std::vector<std::int64_t> layers = {2, 2, 2, 2};  ///< blocks of each stage; >= 1
  std::vector<std::int64_t> widths = {64, 128, 256,
                                      512};  ///< of each stage; a bottleneck gives 4 times as many
  Stem stem = Stem::imagenet;
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  std::int64_t groups = 1;                 ///< bottleneck only: ResNeXt
  std::int64_t width_per_group = 64;       ///< bottleneck only: ResNeXt, wide ResNet
  bool zero_init_residual = false;         ///< blocks start as the identity (Goyal et al., 2017)
  std::int64_t stem_width = 0;             ///< channels of the stem; 0: the first of widths
  bool downsample_in_first_stage = false;  ///< the first stage halves the size as well
  bool downsample_in_bottleneck = false;   ///< bottleneck only: with the first 1x1, not the 3x3
  /// Behind the stem and each block; inside of blocks it is relu, as in Transformers.
  nn::Activation hidden_act = nn::Activation::relu;
  VisionLayout layout = VisionLayout::torchvision;  ///< of files, until set_layout()

  friend bool operator==(const ResNetOptions&, const ResNetOptions&) = default;
};

/// A residual network: stem, stages (each but the first halves the size), mean, linear layer.
///
/// from_pretrained() makes one from a folder of timm or Hugging Face, load_pretrained() reads a
/// file of torchvision:
///
///     auto net = tutti::models::resnet50();
///     tutti::models::load_pretrained(net->weight_layout(), "resnet50.pth");
class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  ~ResNetImpl() override;
  using model_features = types<takes_images, has_residual_blocks>;

  /// Throws c10::Error for lists of different or no length, or a stage without blocks.
  explicit ResNetImpl(ResNetOptions options = {});

  void reset() override;

  /// x: [N, in_channels, H, W]. Returns [N, num_classes], logits.
  at::Tensor forward(const at::Tensor& x) { return fc(avgpool(features(x)).flatten(1)); }

  /// x: [N, in_channels, H, W]. Returns [N, channels, H', W'], the output of the last stage.
  at::Tensor features(const at::Tensor& x);

  /// Stage 0 is `layer1` by name.
  std::vector<nn::Sequential> stages;
  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  nn::MaxPool2d maxpool{nullptr};  ///< empty with the small stem
  nn::AdaptiveAvgPool2d avgpool{nullptr};
  nn::Linear fc{nullptr};

  [[nodiscard]] const ResNetOptions& options() const { return options_; }

  /// The options that a config.json says: of `resnet` of Transformers, of timm with one of the
  /// architectures resnet{18,34,50,101,152}, resnext50_32x4d and its like, wide_resnet{50,101}_2,
  /// or of a call of torchvision. Throws c10::Error (ValueError) for every key that changes the
  /// computation and has a value that is not supported, by name and value.
  static ResNetOptions options_from(const PretrainedConfig& config);

  /// Whose files save_pretrained() writes: those that the model was read from, else torchvision's.
  void set_layout(VisionLayout layout) { options_.layout = layout; }

  /// How the weights, running statistics included, stand in that library's files.
  [[nodiscard]] WeightLayout weight_layout() const { return weight_layout(options_.layout); }
  [[nodiscard]] WeightLayout weight_layout(VisionLayout layout) const;

  /// The config.json that stands beside files of that layout; keys of source_config stay.
  /// Throws c10::Error (ValueError), naming the options, when it cannot express this model.
  [[nodiscard]] PretrainedConfig config() const;

  PretrainedConfig source_config;  ///< what it was made from; empty: nothing

 private:
  [[nodiscard]] std::int64_t stem_width() const {
    return options_.stem_width != 0 ? options_.stem_width : options_.widths.front();
  }
  void make_stem();
  nn::Sequential make_stage(std::size_t stage, std::int64_t in_channels) const;
  void initialize();

  ResNetOptions options_;
};
TORCH_MODULE(ResNet);

/// ResNet-18: 11.7 million parameters. `block` and `layers` of the options are overwritten, as in
/// all these functions.
ResNet resnet18(ResNetOptions options = {});

/// ResNet-34: 21.8 million parameters.
ResNet resnet34(ResNetOptions options = {});

/// ResNet-50: 25.6 million parameters.
ResNet resnet50(ResNetOptions options = {});

/// ResNet-101: 44.5 million parameters.
ResNet resnet101(ResNetOptions options = {});

/// ResNet-152: 60.2 million parameters.
ResNet resnet152(ResNetOptions options = {});

/// ResNeXt-50 32x4d: 25.0 million parameters. `groups` and `width_per_group` of the options are
/// overwritten too, as in those below.
ResNet resnext50_32x4d(ResNetOptions options = {});

/// ResNeXt-101 32x8d: 88.8 million parameters.
ResNet resnext101_32x8d(ResNetOptions options = {});

/// ResNeXt-101 64x4d: 83.5 million parameters.
ResNet resnext101_64x4d(ResNetOptions options = {});

/// Wide ResNet-50-2: 68.9 million parameters.
ResNet wide_resnet50_2(ResNetOptions options = {});

/// Wide ResNet-101-2: 126.9 million parameters.
ResNet wide_resnet101_2(ResNetOptions options = {});

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/resnet.inl.hpp>
#endif

#include <tutti/models/detail/resnet_pretrained.hpp>  // weight_layout(), options_from(), config()
