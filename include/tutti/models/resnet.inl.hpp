// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/resnet.hpp>

namespace tutti::models {

namespace detail {

TUTTI_INLINE nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                             std::int64_t stride, std::int64_t groups) {
  return nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                        .stride(stride)
                        .padding(kernel / 2)
                        .groups(groups)
                        .bias(false));
}

TUTTI_INLINE nn::Sequential projection(const BlockOptions& options, std::int64_t out) {
  if (options.stride == 1 && options.in_channels == out) {
    return nullptr;
  }
  return nn::Sequential(conv(options.in_channels, out, 1, options.stride), nn::BatchNorm2d(out));
}

}  // namespace detail

TUTTI_INLINE ResNetImpl::ResNetImpl(ResNetOptions options) : options_(std::move(options)) {
  TUTTI_CHECK_VALUE(!options_.layers.empty() && options_.layers.size() == options_.widths.size(),
                    "ResNet: layers has ", options_.layers.size(), " stages and widths ",
                    options_.widths.size(), ", expected one entry per stage in both");
  for (const std::int64_t blocks : options_.layers) {
    TUTTI_CHECK_VALUE(blocks >= 1, "ResNet: a stage has ", blocks, " blocks, expected at least 1");
  }
  TUTTI_CHECK_VALUE(options_.block == Block::bottleneck ||
                        (options_.groups == 1 && options_.width_per_group == 64 &&
                         !options_.downsample_in_bottleneck),
                    "ResNet: basic blocks have no groups, no width_per_group and no "
                    "downsample_in_bottleneck; leave them at 1, 64 and false or set block = "
                    "Block::bottleneck");
  TUTTI_CHECK_VALUE(options_.stem_width >= 0, "ResNet: stem_width is ", options_.stem_width,
                    ", expected 1 or more, or 0 for the first of widths");
  reset();
}

TUTTI_INLINE void ResNetImpl::make_stem() {
  const bool large = options_.stem == Stem::imagenet;
  const std::int64_t width = stem_width();
  conv1 = register_module("conv1",
                          detail::conv(options_.in_channels, width, large ? 7 : 3, large ? 2 : 1));
  bn1 = register_module("bn1", nn::BatchNorm2d(width));
  maxpool = nullptr;
  if (large) {
    const auto pool = torch::nn::MaxPool2dOptions(3).stride(2).padding(1);
    maxpool = register_module("maxpool", nn::MaxPool2d(pool));
  }
}

TUTTI_INLINE nn::Sequential ResNetImpl::make_stage(std::size_t stage,
                                                   std::int64_t in_channels) const {
  const bool basic = options_.block == Block::basic;
  BlockOptions block{.in_channels = in_channels,
                     .width = options_.widths[stage],
                     .stride = stage == 0 && !options_.downsample_in_first_stage ? 1 : 2,
                     .groups = options_.groups,
                     .width_per_group = options_.width_per_group,
                     .downsample_in_bottleneck = options_.downsample_in_bottleneck,
                     .hidden_act = options_.hidden_act};
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

TUTTI_INLINE void ResNetImpl::reset() {
  make_stem();
  const std::int64_t expansion =
      options_.block == Block::basic ? BasicBlockImpl::expansion : BottleneckImpl::expansion;
  std::int64_t channels = stem_width();
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

TUTTI_INLINE at::Tensor ResNetImpl::features(const at::Tensor& x) {
  at::Tensor y = detail::activate_in_place(options_.hidden_act, bn1(conv1(x)));
  if (maxpool) {
    y = maxpool(y);
  }
  for (nn::Sequential& stage : stages) {
    y = stage(y);
  }
  return y;
}

TUTTI_INLINE void ResNetImpl::initialize() {
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

TUTTI_INLINE void BasicBlockImpl::reset() {
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

TUTTI_INLINE void BottleneckImpl::reset() {
  const std::int64_t out = options_.width * expansion;
  const std::int64_t inner = options_.width * options_.width_per_group / 64 * options_.groups;
  const bool first = options_.downsample_in_bottleneck;
  conv1 = register_module(
      "conv1", detail::conv(options_.in_channels, inner, 1, first ? options_.stride : 1));
  bn1 = register_module("bn1", nn::BatchNorm2d(inner));
  conv2 = register_module(
      "conv2", detail::conv(inner, inner, 3, first ? 1 : options_.stride, options_.groups));
  bn2 = register_module("bn2", nn::BatchNorm2d(inner));
  conv3 = register_module("conv3", detail::conv(inner, out, 1));
  bn3 = register_module("bn3", nn::BatchNorm2d(out));
  downsample = detail::projection(options_, out);
  if (downsample) {
    register_module("downsample", downsample);
  }
}

TUTTI_INLINE ResNet resnet18(ResNetOptions options) {
  options.block = Block::basic;
  options.layers = {2, 2, 2, 2};
  return ResNet(std::move(options));
}

TUTTI_INLINE ResNet resnet34(ResNetOptions options) {
  options.block = Block::basic;
  options.layers = {3, 4, 6, 3};
  return ResNet(std::move(options));
}

TUTTI_INLINE ResNet resnet50(ResNetOptions options) {
  options.block = Block::bottleneck;
  options.layers = {3, 4, 6, 3};
  return ResNet(std::move(options));
}

TUTTI_INLINE ResNet resnet101(ResNetOptions options) {
  options.block = Block::bottleneck;
  options.layers = {3, 4, 23, 3};
  return ResNet(std::move(options));
}

TUTTI_INLINE ResNet resnet152(ResNetOptions options) {
  options.block = Block::bottleneck;
  options.layers = {3, 8, 36, 3};
  return ResNet(std::move(options));
}

TUTTI_INLINE ResNet resnext50_32x4d(ResNetOptions options) {
  options.groups = 32;
  options.width_per_group = 4;
  return resnet50(std::move(options));
}

TUTTI_INLINE ResNet resnext101_32x8d(ResNetOptions options) {
  options.groups = 32;
  options.width_per_group = 8;
  return resnet101(std::move(options));
}

TUTTI_INLINE ResNet resnext101_64x4d(ResNetOptions options) {
  options.groups = 64;
  options.width_per_group = 4;
  return resnet101(std::move(options));
}

TUTTI_INLINE ResNet wide_resnet50_2(ResNetOptions options) {
  options.groups = 1;
  options.width_per_group = 128;
  return resnet50(std::move(options));
}

TUTTI_INLINE ResNet wide_resnet101_2(ResNetOptions options) {
  options.groups = 1;
  options.width_per_group = 128;
  return resnet101(std::move(options));
}

}  // namespace tutti::models

namespace tutti::models {

TUTTI_INLINE ResNetImpl::~ResNetImpl() = default;
TUTTI_INLINE BasicBlockImpl::~BasicBlockImpl() = default;

TUTTI_INLINE BasicBlockImpl::BasicBlockImpl(const BlockOptions& options) : options_(options) {
  reset();
}
TUTTI_INLINE BottleneckImpl::~BottleneckImpl() = default;

TUTTI_INLINE BottleneckImpl::BottleneckImpl(const BlockOptions& options) : options_(options) {
  reset();
}

}  // namespace tutti::models
