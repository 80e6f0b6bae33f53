// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/resnet.hpp>

namespace tutti::models {

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
TUTTI_INLINE BottleneckImpl::~BottleneckImpl() = default;

}  // namespace tutti::models
