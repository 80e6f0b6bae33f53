// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/models/resnet.hpp>

/// Residual networks for small images: CIFAR, digits.
namespace tutti::models {

/// The shape of a residual network for images of 8 to 64 pixels.
///
/// The defaults are ResNet-20 for CIFAR-10. Each stage but the first halves the size, so that the
/// smallest sensible image has 2^stages pixels a side. 8x8 digits do well with
/// `{.in_channels = 1, .blocks = {1, 1, 1}}`.
struct CifarResNetOptions {
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 10;
  std::vector<std::int64_t> blocks = {3, 3, 3};     ///< of each stage, two convolutions each
  std::vector<std::int64_t> widths = {16, 32, 64};  ///< channels of each stage
  bool zero_init_residual = false;                  ///< blocks start as the identity
};

/// A residual network with a 3x3 stem, basic blocks and projection shortcuts.
///
/// Its parameters are named as ResNet-18's. Source: He et al., CVPR 2016, section 4.2, there with
/// shortcuts that have no parameters.
inline ResNet cifar_resnet(CifarResNetOptions options = {}) {
  return ResNet(ResNetOptions{.block = Block::basic,
                              .layers = std::move(options.blocks),
                              .widths = std::move(options.widths),
                              .stem = Stem::small,
                              .in_channels = options.in_channels,
                              .num_classes = options.num_classes,
                              .zero_init_residual = options.zero_init_residual});
}

/// ResNet-20 for CIFAR: 0.27 million parameters. `blocks` of the options is overwritten.
inline ResNet cifar_resnet20(CifarResNetOptions options = {}) {
  options.blocks = {3, 3, 3};
  return cifar_resnet(std::move(options));
}

/// ResNet-56 for CIFAR: 0.86 million parameters. `blocks` of the options is overwritten.
inline ResNet cifar_resnet56(CifarResNetOptions options = {}) {
  options.blocks = {9, 9, 9};
  return cifar_resnet(std::move(options));
}

}  // namespace tutti::models
