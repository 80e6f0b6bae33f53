// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/framing.hpp>
#include <tutti/data/resize_and_crop.hpp>

/// Cutting, framing, turning over and erasing images, with all that is random given.
///
/// Images are uint8 or floating, [C, H, W] or [N, C, H, W], all of a batch alike. Nothing is done
/// in place; what only moves a window, or leaves an image as it is, is a view. Equal in every bit
/// to the functions of the same names in torchvision's `transforms.v2.functional`. Throw c10::Error
/// (ValueError) for other tensors.
namespace tutti::data {

/// How wide the frame of an image is on each side: `4`, `{left and right, top and bottom}`, or all
/// four.
struct Padding {
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::int64_t right = 0;
  std::int64_t bottom = 0;

  constexpr Padding() = default;
  constexpr Padding(std::int64_t all)  // NOLINT: a number is a frame
      : Padding(all, all, all, all) {}
  constexpr Padding(std::int64_t sides, std::int64_t above) : Padding(sides, above, sides, above) {}
  constexpr Padding(std::int64_t l, std::int64_t t, std::int64_t r, std::int64_t b)
      : left(l), top(t), right(r), bottom(b) {}
  friend constexpr bool operator==(const Padding&, const Padding&) = default;
};

/// What a frame shows.
enum class PaddingMode : std::uint8_t {
  constant,   ///< one value
  edge,       ///< the pixel at the edge again and again
  reflect,    ///< the image reflected, the pixels at the edge once: d c b | a b c d | c b a
  symmetric,  ///< the image reflected, the pixels at the edge twice: c b a | a b c d | d c b
};

/// A box of images; where it reaches out of them it is 0.
at::Tensor crop(const at::Tensor& images, const CropBox& box);

/// The middle of images, framed with 0 first where they are smaller.
at::Tensor center_crop(const at::Tensor& images, const ImageSize& size);

/// A box of images, scaled to a size.
at::Tensor resized_crop(const at::Tensor& images, const CropBox& box, const ImageSize& size,
                        Interpolation interpolation = Interpolation::bilinear);

/// Images in a frame. fill: its value with PaddingMode::constant.
/// padding: >= 0; less than the image's side with reflect, at most the side with symmetric.
at::Tensor pad(const at::Tensor& images, const Padding& padding, double fill = 0,
               PaddingMode mode = PaddingMode::constant);

/// Left and right exchanged.
at::Tensor horizontal_flip(const at::Tensor& images);

/// Above and below exchanged.
at::Tensor vertical_flip(const at::Tensor& images);

/// Images with the pixels of a box, which lies inside, replaced. value: what is written there,
/// that can be expanded to [C, height, width]; or a number for each channel, or one for all.
at::Tensor erase(const at::Tensor& images, const CropBox& box, const at::Tensor& value);
at::Tensor erase(const at::Tensor& images, const CropBox& box, const std::vector<double>& value);

/// Images as floats, less the mean, divided by the standard deviation of their channels. Bytes
/// are divided by 255 first, so that mean and std are of values from 0 to 1, as ImageLoader's.
/// mean, std: a value for each channel, or empty: 0 and 1; std: > 0. Returns float32 of bytes, else
/// images' type.
at::Tensor normalize(const at::Tensor& images, const std::vector<double>& mean,
                     const std::vector<double>& std);

namespace detail {

inline void expect_images(const at::Tensor& images, std::string_view what) {
  TUTTI_CHECK_VALUE((images.scalar_type() == at::kByte || images.is_floating_point()) &&
                        (images.dim() == 3 || images.dim() == 4),
                    what, ": the image is ", images.scalar_type(), images.sizes(),
                    ", expected uint8 or floating, [C, H, W] or [N, C, H, W]");
}

inline void expect_size(const ImageSize& size, std::string_view what) {
  TUTTI_CHECK_VALUE(size.height >= 1 && size.width >= 0, what, ": the size is ", size.height, " x ",
                    size.width, ", expected 1 or more");
}

}  // namespace detail

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/image_geometry.inl.hpp>
#endif
