// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/per_image.hpp>
#include <tutti/data/detail/random_box.hpp>
#include <tutti/data/framing.hpp>
#include <tutti/data/image_geometry.hpp>

/// Transforms of a loader that give images another size.
///
/// Images are uint8 or floating, [C, H, W] or [N, C, H, W]; each of a batch has draws of its own.
/// Throw c10::Error (ValueError) for others, and when an option is out of range.
/// Source: torchvision, `transforms.v2`.
namespace tutti::data {

/// Scales images.
///
///     tutti::data::Resize{.size = 256}           // the shorter side becomes 256
///     tutti::data::Resize{.size = {240, 320}}    // whatever the image's shape
struct Resize {
  ImageSize size = 256;       ///< one number: of the shorter side
  std::int64_t max_size = 0;  ///< what the longer side may become when one number is given; 0: any
  Interpolation interpolation = Interpolation::bilinear;

  /// To which size an image of that size is scaled.
  [[nodiscard]] ImageSize target(std::int64_t height, std::int64_t width) const;

  at::Tensor operator()(const at::Tensor& images) const;
  /// The same, as Transforms call it; draws nothing.
  at::Tensor operator()(const at::Tensor& images, Rng& /*rng*/) const { return (*this)(images); }
  /// The same of an image that is not there yet.
  Framing operator()(std::int64_t height, std::int64_t width, Rng& /*rng*/) const {
    return {.size = target(height, width), .interpolation = interpolation};
  }
  friend bool operator==(const Resize&, const Resize&) = default;
};

/// Keeps the middle of images, framed with 0 where they are smaller.
struct CenterCrop {
  ImageSize size = 224;

  at::Tensor operator()(const at::Tensor& images) const { return center_crop(images, size); }
  /// The same, as Transforms call it; draws nothing.
  at::Tensor operator()(const at::Tensor& images, Rng& /*rng*/) const { return (*this)(images); }
  friend bool operator==(const CenterCrop&, const CenterCrop&) = default;
};

/// Keeps a random piece of images, framed first. Draws row, then column, where there is a choice.
///
///     tutti::data::RandomCrop{.size = 32, .padding = 4}    // as usual for CIFAR-10
struct RandomCrop {
  ImageSize size = 224;
  Padding padding{};           ///< the frame
  bool pad_if_needed = false;  ///< a wider frame, for images that are smaller with theirs
  double fill = 0;             ///< value of the frame
  PaddingMode padding_mode = PaddingMode::constant;

  /// Where the piece lies in an image of that size, of which the frame is no part.
  [[nodiscard]] CropBox draw(std::int64_t height, std::int64_t width, Rng& rng) const;

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const;
  friend bool operator==(const RandomCrop&, const RandomCrop&) = default;

 private:
  [[nodiscard]] Padding frame(std::int64_t height, std::int64_t width) const;
};

/// Keeps a random box of images, scaled to one size: how networks for ImageNet are trained.
///
/// Draws up to ten times area and shape of the box, until it fits, and then row and column. If none
/// fits it is the largest one in the middle with a shape that is allowed.
struct RandomResizedCrop {
  ImageSize size = 224;
  Range scale{0.08, 1};           ///< area of the box, as part of the image's; > 0
  Range ratio{3.0 / 4, 4.0 / 3};  ///< width by height of the box; its logarithm is uniform; > 0
  Interpolation interpolation = Interpolation::bilinear;

  /// The box of an image of that size.
  [[nodiscard]] CropBox draw(std::int64_t height, std::int64_t width, Rng& rng) const;

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const;
  /// The same of an image that is not there yet, and with the same draws.
  Framing operator()(std::int64_t height, std::int64_t width, Rng& rng) const {
    return {.box = draw(height, width, rng), .size = size.square(), .interpolation = interpolation};
  }
  friend bool operator==(const RandomResizedCrop&, const RandomResizedCrop&) = default;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/crops.inl.hpp>
#endif
