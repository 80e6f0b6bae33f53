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
#include <tutti/models/residual_block.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/nn/sequential.hpp>

/// Residual networks for ImageNet and for small images.
///
/// Parameter names and order are torchvision's, so that its weights load unchanged; all layers are
/// replaceable. Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
namespace tutti::models {

/// The shape of one block.
struct BlockOptions {
  std::int64_t in_channels = 64;
  std::int64_t width = 64;  ///< a basic block gives width channels, a bottleneck 4 * width
  std::int64_t stride = 1;
  std::int64_t groups = 1;            ///< bottleneck only: ResNeXt
  std::int64_t width_per_group = 64;  ///< bottleneck only: ResNeXt, wide ResNet
};

namespace detail {

inline nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride = 1, std::int64_t groups = 1) {
  return nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                        .stride(stride)
                        .padding(kernel / 2)
                        .groups(groups)
                        .bias(false));
}

inline nn::Sequential projection(const BlockOptions& options, std::int64_t out) {
  if (options.stride == 1 && options.in_channels == out) {
    return nullptr;
  }
  return nn::Sequential(conv(options.in_channels, out, 1, options.stride), nn::BatchNorm2d(out));
}

}  // namespace detail

/// Two 3x3 convolutions; the stride is in the first.
class BasicBlockImpl : public torch::nn::Cloneable<BasicBlockImpl>, public ResidualBlock {
 public:
  ~BasicBlockImpl() override;
  static constexpr std::int64_t expansion = 1;

  explicit BasicBlockImpl(const BlockOptions& options) : options_(options) { reset(); }

  void reset() override {
    const std::int64_t width = options_.width;
    conv1 = register_module("conv1", detail::conv(options_.in_channels, width, 3, options_.stride));
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    conv2 = register_module("conv2", detail::conv(width, width, 3));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    downsample = detail::projection(options_, width);
    if (downsample) {
      register_module("downsample", downsample);
    }
  }

  /// x: [N, in, H, W]. Returns [N, width, H / stride, W / stride].
  at::Tensor forward(const at::Tensor& x) { return joined(x); }

  at::Tensor residual(const at::Tensor& x) override { return bn2(conv2(bn1(conv1(x)).relu_())); }
  at::Tensor shortcut(const at::Tensor& x) override { return downsample ? downsample(x) : x; }
  [[nodiscard]] bool projects() const override { return bool(downsample); }
  [[nodiscard]] std::string_view layer_name() const override { return "ResNetBasicBlock"; }

  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  nn::Sequential downsample{nullptr};  ///< empty where the shapes agree

 private:
  BlockOptions options_;
};
TORCH_MODULE(BasicBlock);

/// 1x1, 3x3 and 1x1 convolution; the stride is in the 3x3 one, as in torchvision ("ResNet v1.5").
class BottleneckImpl : public torch::nn::Cloneable<BottleneckImpl>, public ResidualBlock {
 public:
  ~BottleneckImpl() override;
  static constexpr std::int64_t expansion = 4;

  explicit BottleneckImpl(const BlockOptions& options) : options_(options) { reset(); }

  void reset() override {
    const std::int64_t out = options_.width * expansion;
    const std::int64_t inner = options_.width * options_.width_per_group / 64 * options_.groups;
    conv1 = register_module("conv1", detail::conv(options_.in_channels, inner, 1));
    bn1 = register_module("bn1", nn::BatchNorm2d(inner));
    conv2 =
        register_module("conv2", detail::conv(inner, inner, 3, options_.stride, options_.groups));
    bn2 = register_module("bn2", nn::BatchNorm2d(inner));
    conv3 = register_module("conv3", detail::conv(inner, out, 1));
    bn3 = register_module("bn3", nn::BatchNorm2d(out));
    downsample = detail::projection(options_, out);
    if (downsample) {
      register_module("downsample", downsample);
    }
  }

  /// x: [N, in, H, W]. Returns [N, 4 * width, H / stride, W / stride].
  at::Tensor forward(const at::Tensor& x) { return joined(x); }

  at::Tensor residual(const at::Tensor& x) override {
    return bn3(conv3(bn2(conv2(bn1(conv1(x)).relu_())).relu_()));
  }
  at::Tensor shortcut(const at::Tensor& x) override { return downsample ? downsample(x) : x; }
  [[nodiscard]] bool projects() const override { return bool(downsample); }
  [[nodiscard]] std::string_view layer_name() const override { return "ResNetBottleneck"; }

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
                                      512};  ///< of each stage; the stem has the first
  Stem stem = Stem::imagenet;
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  std::int64_t groups = 1;            ///< bottleneck only: ResNeXt
  std::int64_t width_per_group = 64;  ///< bottleneck only: ResNeXt, wide ResNet
  bool zero_init_residual = false;    ///< blocks start as the identity (Goyal et al., 2017)
};

/// A residual network: stem, stages (each but the first halves the size), mean, linear layer.
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

 private:
  void make_stem();
  nn::Sequential make_stage(std::size_t stage, std::int64_t in_channels) const;
  void initialize();

  ResNetOptions options_;
};
TORCH_MODULE(ResNet);

inline ResNetImpl::ResNetImpl(ResNetOptions options) : options_(std::move(options)) {
  TUTTI_CHECK_VALUE(!options_.layers.empty() && options_.layers.size() == options_.widths.size(),
                    "ResNet: layers has ", options_.layers.size(), " stages and widths ",
                    options_.widths.size(), ", expected one entry per stage in both");
  for (const std::int64_t blocks : options_.layers) {
    TUTTI_CHECK_VALUE(blocks >= 1, "ResNet: a stage has ", blocks, " blocks, expected at least 1");
  }
  TUTTI_CHECK_VALUE(options_.block == Block::bottleneck ||
                        (options_.groups == 1 && options_.width_per_group == 64),
                    "ResNet: basic blocks have no groups and no width_per_group; leave them at 1 "
                    "and 64 or set block = Block::bottleneck");
  reset();
}

inline void ResNetImpl::make_stem() {
  const bool large = options_.stem == Stem::imagenet;
  const std::int64_t width = options_.widths.front();
  conv1 = register_module("conv1",
                          detail::conv(options_.in_channels, width, large ? 7 : 3, large ? 2 : 1));
  bn1 = register_module("bn1", nn::BatchNorm2d(width));
  maxpool = nullptr;
  if (large) {
    const auto pool = torch::nn::MaxPool2dOptions(3).stride(2).padding(1);
    maxpool = register_module("maxpool", nn::MaxPool2d(pool));
  }
}

inline nn::Sequential ResNetImpl::make_stage(std::size_t stage, std::int64_t in_channels) const {
  const bool basic = options_.block == Block::basic;
  BlockOptions block{.in_channels = in_channels,
                     .width = options_.widths[stage],
                     .stride = stage == 0 ? 1 : 2,
                     .groups = options_.groups,
                     .width_per_group = options_.width_per_group};
  nn::Sequential blocks;
  for (std::int64_t i = 0; i < options_.layers[stage]; ++i) {
    if (basic) {
      blocks->push_back(BasicBlock(block));
    } else {
      blocks->push_back(Bottleneck(block));
    }
    block.in_channels =
        block.width * (basic ? BasicBlockImpl::expansion : BottleneckImpl::expansion);
    block.stride = 1;
  }
  return blocks;
}

inline void ResNetImpl::reset() {
  make_stem();
  const std::int64_t expansion =
      options_.block == Block::basic ? BasicBlockImpl::expansion : BottleneckImpl::expansion;
  std::int64_t channels = options_.widths.front();
  stages.clear();
  for (std::size_t stage = 0; stage < options_.layers.size(); ++stage) {
    stages.push_back(
        register_module("layer" + std::to_string(stage + 1), make_stage(stage, channels)));
    channels = options_.widths[stage] * expansion;
  }
  avgpool = register_module("avgpool", nn::AdaptiveAvgPool2d(1));
  fc = register_module("fc", nn::Linear(channels, options_.num_classes));
  initialize();
}

inline at::Tensor ResNetImpl::features(const at::Tensor& x) {
  at::Tensor y = bn1(conv1(x)).relu_();
  if (maxpool) {
    y = maxpool(y);
  }
  for (nn::Sequential& stage : stages) {
    y = stage(y);
  }
  return y;
}

inline void ResNetImpl::initialize() {
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
    if (!options_.zero_init_residual) {
      continue;
    }
    if (auto* basic = module->as<BasicBlock>()) {
      torch::nn::init::zeros_(basic->bn2->weight);
    } else if (auto* bottleneck = module->as<Bottleneck>()) {
      torch::nn::init::zeros_(bottleneck->bn3->weight);
    }
  }
}

/// ResNet-18: 11.7 million parameters. `block` and `layers` of the options are overwritten, as in
/// all these functions.
inline ResNet resnet18(ResNetOptions options = {}) {
  options.block = Block::basic;
  options.layers = {2, 2, 2, 2};
  return ResNet(std::move(options));
}

/// ResNet-34: 21.8 million parameters.
inline ResNet resnet34(ResNetOptions options = {}) {
  options.block = Block::basic;
  options.layers = {3, 4, 6, 3};
  return ResNet(std::move(options));
}

/// ResNet-50: 25.6 million parameters.
inline ResNet resnet50(ResNetOptions options = {}) {
  options.block = Block::bottleneck;
  options.layers = {3, 4, 6, 3};
  return ResNet(std::move(options));
}

/// ResNet-101: 44.5 million parameters.
inline ResNet resnet101(ResNetOptions options = {}) {
  options.block = Block::bottleneck;
  options.layers = {3, 4, 23, 3};
  return ResNet(std::move(options));
}

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE ResNetImpl::~ResNetImpl() = default;
TUTTI_INLINE BasicBlockImpl::~BasicBlockImpl() = default;
TUTTI_INLINE BottleneckImpl::~BottleneckImpl() = default;

}  // namespace tutti::models

#endif
