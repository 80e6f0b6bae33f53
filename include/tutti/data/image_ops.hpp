// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/image_bytes.hpp>

/// Operations on 8-bit images, equal bit for bit to those of Pillow 11.
///
/// Each takes uint8 [C, H, W], or [N, C, H, W], whose images are done several at a time, on the
/// CPU, and returns a new tensor of the same shape. Throws c10::Error (ValueError) for others.
namespace tutti::data {

namespace detail {

inline at::Tensor empty_bytes(at::IntArrayRef shape) {
  return at::Tensor(at::detail::empty_cpu(shape, at::kByte, /*pin_memory=*/false, std::nullopt));
}

inline void expect_bytes(const at::Tensor& images, std::string_view what) {
  TUTTI_CHECK_VALUE(images.scalar_type() == at::kByte && images.is_cpu() &&
                        (images.dim() == 3 || images.dim() == 4),
                    what, ": the image is ", images.scalar_type(), images.sizes(), " on ",
                    images.device(), ", expected uint8 [C, H, W] or [N, C, H, W] on the CPU");
}

// f(planes, out) for each image; `what` is the operation, for messages.
template <class F>
at::Tensor each_image(const at::Tensor& images, std::string_view what, const F& f) {
  expect_bytes(images, what);
  const at::Tensor plain = images.contiguous();
  at::Tensor out = empty_bytes(images.sizes());
  const std::int64_t channels = images.size(-3);
  const std::int64_t step = channels * images.size(-2) * images.size(-1);
  if (step == 0) {
    return out;
  }
  const auto* from = plain.const_data_ptr<Byte>();
  auto* to = out.mutable_data_ptr<Byte>();
  ::tutti::detail::parallel_each(images.numel() / step, [&](std::int64_t i) {
    f(Planes{from + i * step, channels, images.size(-2), images.size(-1)}, to + i * step);
  });
  return out;
}

// The same through a table of values for each channel: make(counts of values).
template <class F>
at::Tensor each_channel(const at::Tensor& images, std::string_view what, const F& make) {
  return each_image(images, what, [&](const Planes& image, Byte* out) {
    for (std::int64_t channel = 0; channel < image.channels; ++channel) {
      const Byte* plane = image.plane(channel);
      look_up(plane, out + channel * image.area(), image.area(),
              make(count_values(plane, image.area())));
    }
  });
}

// The same through one table.
inline at::Tensor through_table(const at::Tensor& images, std::string_view what,
                                const Table& table) {
  return each_image(images, what, [&](const Planes& image, Byte* out) {
    look_up(image.pixels, out, image.channels * image.area(), table);
  });
}

inline void expect_colours(const at::Tensor& images, std::string_view what) {
  expect_bytes(images, what);
  TUTTI_CHECK_VALUE(images.size(-3) == 1 || images.size(-3) == 3, what, ": the image has ",
                    images.size(-3), " channels, expected 1, or 3 of red, green and blue");
}

}  // namespace detail

/// Stretches each channel so that its darkest value becomes 0 and its brightest 255.
inline at::Tensor autocontrast(const at::Tensor& images) {
  return detail::each_channel(images, "autocontrast", detail::autocontrast_table);
}

/// Makes the values of each channel about equally frequent.
inline at::Tensor equalize(const at::Tensor& images) {
  return detail::each_channel(images, "equalize", detail::equalize_table);
}

/// Keeps the highest `bits` bits of each value. bits: 0 to 8.
inline at::Tensor posterize(const at::Tensor& images, int bits) {
  TUTTI_CHECK_VALUE(bits >= 0 && bits <= 8, "posterize: bits is ", bits, ", expected 0 to 8");
  detail::Table table = detail::identity_table();
  for (auto& value : table) {
    value = static_cast<detail::Byte>(value & ~((1 << (8 - bits)) - 1));
  }
  return detail::through_table(images, "posterize", table);
}

/// Inverts all values from `threshold` on.
inline at::Tensor solarize(const at::Tensor& images, int threshold = 128) {
  detail::Table table = detail::identity_table();
  for (auto& value : table) {
    value = static_cast<detail::Byte>(value < threshold ? value : 255 - value);
  }
  return detail::through_table(images, "solarize", table);
}

/// What a pixel of a moved or resized image is made of: the nearest one, or those around its place,
/// as in Pillow.
enum class Interpolation : std::uint8_t { nearest, bilinear, bicubic };

/// "nearest", "bilinear", "bicubic".
constexpr std::string_view to_string(Interpolation interpolation) {
  return interpolation == Interpolation::nearest    ? "nearest"
         : interpolation == Interpolation::bilinear ? "bilinear"
                                                    : "bicubic";
}

/// Which place of an image each pixel of a new one shows: pixel (x, y) shows
/// `(a x + b y + c, d x + e y + f)`; x counts columns, y rows, and pixels have their middles at
/// 1/2.
using Affine = detail::Affine;

/// Moves an image, black where there was nothing. interpolation: nearest or bilinear.
inline at::Tensor affine(const at::Tensor& images, const Affine& from,
                         Interpolation interpolation = Interpolation::bilinear) {
  TUTTI_CHECK_VALUE(interpolation != Interpolation::bicubic,
                    "affine: interpolation is bicubic, expected nearest or bilinear");
  return detail::each_image(images, "affine", [&](const auto& image, detail::Byte* out) {
    if (interpolation == Interpolation::nearest) {
      detail::transform_to_nearest(image, out, from);
    } else {
      detail::transform(image, out, from);
    }
  });
}

/// Turns an image about its middle, counter-clockwise, by `degrees`.
inline at::Tensor rotate(const at::Tensor& images, double degrees,
                         Interpolation interpolation = Interpolation::bilinear) {
  detail::expect_bytes(images, "rotate");
  return affine(images, detail::turn(degrees, images.size(-2), images.size(-1)), interpolation);
}

/// Shifts rows by `by` times their distance from the upper edge, columns by theirs from the left.
inline at::Tensor shear_x(const at::Tensor& images, double by,
                          Interpolation interpolation = Interpolation::bilinear) {
  return affine(images, {.b = by}, interpolation);
}
inline at::Tensor shear_y(const at::Tensor& images, double by,
                          Interpolation interpolation = Interpolation::bilinear) {
  return affine(images, {.d = by}, interpolation);
}

/// Shifts an image by whole pixels to the left, or up.
inline at::Tensor translate_x(const at::Tensor& images, std::int64_t pixels) {
  return detail::each_image(images, "translate_x", [&](const auto& image, detail::Byte* out) {
    detail::shift(image, out, pixels, 0);
  });
}
inline at::Tensor translate_y(const at::Tensor& images, std::int64_t pixels) {
  return detail::each_image(images, "translate_y", [&](const auto& image, detail::Byte* out) {
    detail::shift(image, out, 0, pixels);
  });
}

/// Changes how colourful an image is: 0 makes it grey, 1 leaves it, more exaggerates. C is 1 or 3.
inline at::Tensor color(const at::Tensor& images, double factor) {
  detail::expect_colours(images, "color");
  return detail::each_image(images, "color", [&](const auto& image, detail::Byte* out) {
    detail::blend_with_grey(image, out, static_cast<float>(factor));
  });
}

/// Changes the contrast: 0 gives the mean grey, 1 leaves it, more exaggerates. C is 1 or 3.
inline at::Tensor contrast(const at::Tensor& images, double factor) {
  detail::expect_colours(images, "contrast");
  return detail::each_image(images, "contrast", [&](const auto& image, detail::Byte* out) {
    detail::look_up(
        image.pixels, out, image.channels * image.area(),
        detail::blend_table(detail::mean_brightness(image), static_cast<float>(factor)));
  });
}

/// Changes the brightness: 0 gives black, 1 leaves it.
inline at::Tensor brightness(const at::Tensor& images, double factor) {
  return detail::through_table(images, "brightness",
                               detail::blend_table(0, static_cast<float>(factor)));
}

/// Moves all hues on by `shift` of the circle of colours. shift: -0.5 to 0.5; 0 leaves them but for
/// rounding. C is 1, which is left alone, or 3.
inline at::Tensor hue(const at::Tensor& images, double shift) {
  detail::expect_colours(images, "hue");
  TUTTI_CHECK_VALUE(shift >= -0.5 && shift <= 0.5, "hue: shift is ", shift,
                    ", expected -0.5 to 0.5");
  if (images.size(-3) == 1) {
    return images.clone();
  }
  return detail::each_image(images, "hue", [&](const auto& image, detail::Byte* out) {
    detail::shift_hue(image, out, static_cast<int>(shift * 255));
  });
}

/// Changes the sharpness: 0 smooths, 1 leaves it, more sharpens.
inline at::Tensor sharpness(const at::Tensor& images, double factor) {
  return detail::each_image(images, "sharpness", [&](const auto& image, detail::Byte* out) {
    detail::blend_with_smooth(image, out, static_cast<float>(factor));
  });
}

}  // namespace tutti::data
