// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/per_image.hpp>
#include <tutti/data/image_ops.hpp>

/// Image operations of random strength, the parts of AugMix and RandAugment.
namespace tutti::data {

/// An operation. Its strength is drawn anew every time it is applied.
enum class Augmentation : std::uint8_t {
  autocontrast,
  equalize,
  posterize,
  rotate,
  solarize,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  color,  ///< these four change as much in either direction
  contrast,
  brightness,
  sharpness,
  color_original,  ///< these as in the papers' code, factors from 0.1 to 1.9
  contrast_original,
  brightness_original,
  sharpness_original,
};

/// "autocontrast", "color_original", ...
constexpr std::string_view to_string(Augmentation augmentation) {
  constexpr std::array<std::string_view, 17> names{
      "autocontrast",      "equalize",       "posterize",         "rotate",
      "solarize",          "shear_x",        "shear_y",           "translate_x",
      "translate_y",       "color",          "contrast",          "brightness",
      "sharpness",         "color_original", "contrast_original", "brightness_original",
      "sharpness_original"};
  return names[static_cast<std::size_t>(augmentation)];
}

}  // namespace tutti::data

namespace tutti {

/// Which operations AugMix and RandAugment draw from.
enum class AugmentationSet : std::uint8_t {
  all,       ///< the safe ones, and color, contrast, brightness and sharpness
  safe,      ///< autocontrast to translate_y: none that corruption benchmarks test with
  original,  ///< the safe ones, and the *_original forms of the other four
};

/// "all", "safe", "original".
constexpr std::string_view to_string(AugmentationSet set) {
  return set == AugmentationSet::all ? "all" : set == AugmentationSet::safe ? "safe" : "original";
}

}  // namespace tutti

namespace tutti::data {

/// How many operations a set has.
constexpr std::int64_t size_of(AugmentationSet set) {
  return set == AugmentationSet::safe ? 9 : 13;
}

/// The i-th operation of a set, from 0.
constexpr Augmentation operation_of(AugmentationSet set, std::int64_t i) {
  return static_cast<Augmentation>(set == AugmentationSet::original && i >= 9 ? i + 4 : i);
}

namespace detail {

// A factor about 1, to either side with equal probability, the further the larger `severity`.
inline double draw_factor(Rng& rng, double severity) {
  return rng.uniform() > 0.5 ? rng.uniform(1, std::max(severity, 1.0))
                             : rng.uniform(1 - 0.09 * severity, 1);
}

// A number up to `most` at severity 10.
inline double draw_up_to(Rng& rng, double severity, double most) {
  return rng.uniform(0.1, severity) * most / 10;
}

inline double with_random_sign(Rng& rng, double value) {
  return rng.uniform() > 0.5 ? -value : value;
}

inline double draw_degrees(Rng& rng, double severity) {
  return with_random_sign(rng, std::trunc(draw_up_to(rng, severity, 30)));
}

inline std::int64_t draw_pixels(Rng& rng, double severity, std::int64_t side) {
  const double most = static_cast<double>(side) / 3;
  return static_cast<std::int64_t>(
      with_random_sign(rng, std::trunc(draw_up_to(rng, severity, most))));
}

inline double draw_original_factor(Rng& rng, double severity) {
  return draw_up_to(rng, severity, 1.8) + 0.1;
}

}  // namespace detail

/// Applies one operation with a random strength.
///
/// image: uint8 [C, H, W]; C is 1 or 3 for those on colours. severity: in (0, 10]: the largest
/// strength; autocontrast and equalize have none. Draws the strength, then its sign.
/// Source: MosaicML Composer, `composer.algorithms.utils.augmentation_primitives`, after Hendrycks
/// et al., "AugMix", ICLR 2020.
inline at::Tensor augment(const at::Tensor& image, Augmentation operation, double severity,
                          Rng& rng) {
  detail::expect_bytes(image, to_string(operation));
  const auto whole = [&](double most) {
    return static_cast<int>(detail::draw_up_to(rng, severity, most));
  };
  switch (operation) {
    case Augmentation::autocontrast:
      return autocontrast(image);
    case Augmentation::equalize:
      return equalize(image);
    case Augmentation::posterize:
      return posterize(image, 4 - whole(4));
    case Augmentation::rotate:
      return rotate(image, detail::draw_degrees(rng, severity));
    case Augmentation::solarize:
      return solarize(image, 256 - whole(256));
    case Augmentation::shear_x:
    case Augmentation::shear_y: {
      const double by = detail::with_random_sign(rng, detail::draw_up_to(rng, severity, 0.3));
      return operation == Augmentation::shear_x ? shear_x(image, by) : shear_y(image, by);
    }
    case Augmentation::translate_x:
      return translate_x(image, detail::draw_pixels(rng, severity, image.size(-1)));
    case Augmentation::translate_y:
      return translate_y(image, detail::draw_pixels(rng, severity, image.size(-2)));
    case Augmentation::color:
      return color(image, detail::draw_factor(rng, severity));
    case Augmentation::contrast:
      return contrast(image, detail::draw_factor(rng, severity));
    case Augmentation::brightness: {
      const double factor = detail::draw_factor(rng, severity);
      return brightness(image, factor > 1 ? factor * 0.75 : factor);
    }
    case Augmentation::sharpness:
      return sharpness(image, detail::draw_factor(rng, severity));
    case Augmentation::color_original:
      return color(image, detail::draw_original_factor(rng, severity));
    case Augmentation::contrast_original:
      return contrast(image, detail::draw_original_factor(rng, severity));
    case Augmentation::brightness_original:
      return brightness(image, detail::draw_original_factor(rng, severity));
    case Augmentation::sharpness_original:
      return sharpness(image, detail::draw_original_factor(rng, severity));
  }
  TUTTI_CHECK_VALUE(false, "augment: there is no operation ", static_cast<int>(operation));
}

/// Applies `f(image, rng)`, uint8 [C, H, W] to the same, to images of any type.
///
/// images: [C, H, W] or [N, C, H, W] on the CPU, uint8, or floating from 0 to 1, which is rounded
/// to 256 values. Several images are done at a time, each with random numbers of its own. Returns
/// images' shape and type. Throws c10::Error (ValueError) for others.
template <class F>
at::Tensor map_images(const at::Tensor& images, Rng& rng, const F& f) {
  TUTTI_CHECK_VALUE((images.scalar_type() == at::kByte || images.is_floating_point()) &&
                        images.is_cpu() && (images.dim() == 3 || images.dim() == 4),
                    "the images are ", images.scalar_type(), images.sizes(), " on ",
                    images.device(),
                    ", expected uint8, or floating from 0 to 1, [C, H, W] or [N, C, H, W] on the "
                    "CPU");
  if (images.is_floating_point()) {
    const at::Tensor bytes = images.to(at::kFloat).mul(255).round_().clamp_(0, 255).to(at::kByte);
    return map_images(bytes, rng, f).to(at::kFloat).div_(255).to(images.scalar_type());
  }
  return detail::per_image(images, rng, {}, f);
}

}  // namespace tutti::data
