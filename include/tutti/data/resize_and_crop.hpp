// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/framing.hpp>
#include <tutti/data/image_ops.hpp>

/// How images get the size of a model's input.
namespace tutti::data {

/// Images scaled to `rows` and `columns`; themselves when they are that. As Pillow and torchvision
/// with `antialias`: a pixel is made of all that come together in it.
///
/// images: uint8, or floating, [C, H, W] or [N, C, H, W], not empty. Bytes are rounded to the
/// nearest. Returns images' type. Throws c10::Error (ValueError) for others.
inline at::Tensor resize_image(const at::Tensor& images, std::int64_t rows, std::int64_t columns,
                               Interpolation interpolation = Interpolation::bilinear) {
  const bool bytes = images.scalar_type() == at::kByte;
  TUTTI_CHECK_VALUE(rows >= 1 && columns >= 1 && (images.dim() == 3 || images.dim() == 4) &&
                        images.numel() > 0 && (bytes || images.is_floating_point()),
                    "resize_image: the image is ", images.scalar_type(), images.sizes(), " for ",
                    rows, " rows and ", columns,
                    " columns, expected uint8 or floating [C, H, W] or [N, C, H, W] that is not "
                    "empty, and 1 or more");
  if (images.size(-2) == rows && images.size(-1) == columns) {
    return images;
  }
  const at::Tensor plain = images.contiguous();
  const at::Tensor batch = images.dim() == 3 ? plain.unsqueeze(0) : plain;
  const auto scale = [&](const at::Tensor& x) {
    switch (interpolation) {
      case Interpolation::nearest:
        return at::_upsample_nearest_exact2d(x, {rows, columns});
      case Interpolation::bicubic:
        return at::_upsample_bicubic2d_aa(x, {rows, columns}, /*align_corners=*/false);
      default:
        return at::_upsample_bilinear2d_aa(x, {rows, columns}, /*align_corners=*/false);
    }
  };
  const bool known = images.is_cpu() ? bytes || batch.element_size() >= 4 : !bytes;
  at::Tensor out = known ? scale(batch) : scale(batch.to(at::kFloat));
  if (!known) {
    out = bytes ? out.round_().clamp_(0, 255).to(at::kByte) : out.to(images.scalar_type());
  }
  return (images.dim() == 3 ? out.squeeze(0) : out).contiguous();
}

namespace detail {

// The offset of the middle, where halves go to the even pixel, as Python rounds.
inline std::int64_t middle(std::int64_t side, std::int64_t kept) {
  return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(side - kept) / 2));
}

}  // namespace detail

/// An image transform of evaluation: scales an image, then keeps the square in its middle.
///
///     tutti::data::ResizeAndCrop fit{.resize = 256, .crop = 224};    // torchvision's for ImageNet
///     tutti::ImageLoader loader{images, labels, {.transforms = {{"fit", fit}}}};
///
/// Where an odd number of rows or columns is cut off, the square begins at the half rounded to the
/// even number, as torchvision's and timm's does; that of Hugging Face's image processors begins
/// at the half rounded down.
///
/// Source: torchvision, `transforms.Resize` and `CenterCrop`.
struct ResizeAndCrop {
  std::int64_t resize = 256;  ///< pixels of the shorter side, of both with squash; 0: no scaling
  std::int64_t crop = 224;    ///< sides of the square that is kept, in pixels; 0: everything
  Interpolation interpolation = Interpolation::bilinear;
  bool squash = false;        ///< both sides become `resize`, whatever the image's shape
  bool floor_center = false;  ///< halves of a pixel are rounded down, as Hugging Face's are

  /// image: uint8, or floating, [C, H, W], not empty. Returns [C, crop, crop] of its type.
  /// Throws c10::Error (ValueError) for other images, and for one smaller than the square.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& image) const {
    TUTTI_CHECK_VALUE(image.dim() == 3 && image.numel() > 0, "ResizeAndCrop: the image is ",
                      image.sizes(), ", expected [C, H, W] that is not empty");
    const Framing plan = framing(image.size(1), image.size(2));
    const at::Tensor scaled = plan.size.height == 0 ? image
                                                    : resize_image(image, plan.size.height,
                                                                   plan.size.width, interpolation);
    return plan.kept.height == 0 ? scaled
                                 : scaled.narrow(1, plan.kept.top, plan.kept.height)
                                       .narrow(2, plan.kept.left, plan.kept.width);
  }

  /// The same of an image that is not there yet.
  Framing operator()(std::int64_t height, std::int64_t width, Rng& /*rng*/) const {
    return framing(height, width);
  }

  /// The same, as Transforms call it; draws nothing.
  at::Tensor operator()(const at::Tensor& image, Rng& /*rng*/) const { return (*this)(image); }

  friend bool operator==(const ResizeAndCrop&, const ResizeAndCrop&) = default;

 private:
  [[nodiscard]] Framing framing(std::int64_t height, std::int64_t width) const {
    Framing out{.interpolation = interpolation};
    if (resize > 0) {
      const std::int64_t shorter = std::min(height, width);
      out.size = squash ? ImageSize{resize, resize}
                        : ImageSize{height * resize / shorter, width * resize / shorter};
    }
    if (crop != 0) {
      const std::int64_t rows = resize > 0 ? out.size.height : height;
      const std::int64_t columns = resize > 0 ? out.size.width : width;
      TUTTI_CHECK_VALUE(crop > 0 && rows >= crop && columns >= crop, "ResizeAndCrop: the image is ",
                        rows, " x ", columns, " after resize, crop is ", crop,
                        ", expected sides of at least as many "
                        "pixels");
      const auto first = [&](std::int64_t side) {
        return floor_center ? (side - crop) / 2 : detail::middle(side, crop);
      };
      out.kept = {first(rows), first(columns), crop, crop};
    }
    return out;
  }
};

}  // namespace tutti::data
