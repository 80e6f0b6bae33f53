// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>

/// How images get the size of a model's input.
namespace tutti::data {

/// How a pixel of a resized image is made of those that come together in it, as in Pillow.
enum class Interpolation : std::uint8_t { bilinear, bicubic };

/// A uint8 image [C, H, W], not empty, scaled to [C, rows, columns]; itself when it is that.
inline at::Tensor resize_image(const at::Tensor& image, std::int64_t rows, std::int64_t columns,
                               Interpolation interpolation = Interpolation::bilinear) {
  TUTTI_CHECK_VALUE(rows >= 1 && columns >= 1 && image.dim() == 3 && image.numel() > 0 &&
                        image.scalar_type() == at::kByte,
                    "resize_image: the image is ", image.scalar_type(), image.sizes(), " for ",
                    rows, " rows and ", columns,
                    " columns, expected uint8 [C, H, W] that is not empty, and 1 or more");
  if (image.size(1) == rows && image.size(2) == columns) {
    return image;
  }
  const at::Tensor x = image.to(at::kFloat).unsqueeze(0);
  const at::Tensor scaled =
      interpolation == Interpolation::bicubic
          ? at::_upsample_bicubic2d_aa(x, {rows, columns}, /*align_corners=*/false)
          : at::_upsample_bilinear2d_aa(x, {rows, columns}, /*align_corners=*/false);
  return scaled.squeeze(0).round_().clamp_(0, 255).to(at::kByte);
}

/// An image transform of evaluation: scales an image, then keeps the square in its middle.
///
///     tutti::data::ResizeAndCrop fit{.resize = 256, .crop = 224};    // torchvision's for ImageNet
///     tutti::ImageLoader loader{images, labels, {.transforms = {{"fit", fit}}}};
///
/// Source: torchvision, `transforms.Resize` and `CenterCrop`.
struct ResizeAndCrop {
  std::int64_t resize = 256;  ///< pixels of the shorter side, of both with squash; 0: no scaling
  std::int64_t crop = 224;    ///< sides of the square that is kept, in pixels; 0: everything
  Interpolation interpolation = Interpolation::bilinear;
  bool squash = false;  ///< both sides become `resize`, whatever the image's shape

  /// image: uint8 [C, H, W], not empty. Returns uint8 [C, crop, crop].
  /// Throws c10::Error (ValueError) for other images, and for one smaller than the square.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& image) const {
    at::Tensor scaled = image;
    if (resize > 0) {
      const std::int64_t height = image.dim() == 3 ? image.size(1) : 0;
      const std::int64_t width = image.dim() == 3 ? image.size(2) : 0;
      const std::int64_t shorter = std::max<std::int64_t>(1, std::min(height, width));
      scaled = squash ? resize_image(image, resize, resize, interpolation)
                      : resize_image(image, height * resize / shorter, width * resize / shorter,
                                     interpolation);
    }
    if (crop == 0) {
      return scaled;
    }
    TUTTI_CHECK_VALUE(
        crop > 0 && scaled.dim() == 3 && scaled.size(1) >= crop && scaled.size(2) >= crop,
        "ResizeAndCrop: the image is ", scaled.sizes(), " after resize, crop is ", crop,
        ", expected [C, H, W] with sides of at least as many pixels");
    return scaled.narrow(1, (scaled.size(1) - crop) / 2, crop)
        .narrow(2, (scaled.size(2) - crop) / 2, crop);
  }

  /// The same, as Transforms call it; draws nothing.
  at::Tensor operator()(const at::Tensor& image, Rng& /*rng*/) const { return (*this)(image); }

  friend bool operator==(const ResizeAndCrop&, const ResizeAndCrop&) = default;
};

}  // namespace tutti::data
