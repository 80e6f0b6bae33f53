// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/per_image.hpp>
#include <tutti/data/image_geometry.hpp>
#include <tutti/data/image_ops.hpp>

/// Changes of colours, of bytes and of floats, and a transform of a loader that draws them.
///
/// Images are uint8, or floating from 0 to 1, [C, H, W] or [N, C, H, W] on the CPU; C is 1 or 3.
/// Bytes equal what torchvision makes of Pillow's images, bit for bit (so do the operations of
/// image_ops.hpp, which do them); floats equal what it makes of tensors, to 1e-6. Throw c10::Error
/// (ValueError) for others, and for factors below 0.
/// Source: torchvision, `transforms.v2`.
namespace tutti::data {

/// 0 gives black, 1 leaves the images.
at::Tensor adjust_brightness(const at::Tensor& images, double factor);

/// 0 gives each image's mean grey, 1 leaves it, more exaggerates.
at::Tensor adjust_contrast(const at::Tensor& images, double factor);

/// 0 gives grey images, 1 leaves them, more exaggerates.
at::Tensor adjust_saturation(const at::Tensor& images, double factor);

/// Moves hues on by that part of the circle of colours: -0.5 to 0.5.
at::Tensor adjust_hue(const at::Tensor& images, double shift);

/// What ColorJitter drew.
struct ColorFactors {
  std::array<std::int64_t, 4> order{0, 1, 2, 3};  ///< of brightness, contrast, saturation, hue
  std::optional<double> brightness{};
  std::optional<double> contrast{};
  std::optional<double> saturation{};
  std::optional<double> hue{};
};

/// The changes one after the other, those without a factor left out.
at::Tensor jitter_colors(const at::Tensor& images, const ColorFactors& factors);

/// How far a factor goes: `0.4` is from 0.6 to 1.4 (of hue: from -0.4 to 0.4), `{0.6, 1.2}` what it
/// says.
class JitterRange {
 public:
  constexpr JitterRange(double by = 0) : low_(by), high_(by), both_(false) {}  // NOLINT: a number
  constexpr JitterRange(double low, double high) : low_(low), high_(high), both_(true) {}

  /// From where to where, about `center`, and not below `least` when one number is given.
  [[nodiscard]] constexpr Range about(double center, double least) const {
    return both_ ? Range{low_, high_} : Range{std::max(center - low_, least), center + high_};
  }
  friend constexpr bool operator==(const JitterRange&, const JitterRange&) = default;

 private:
  double low_;
  double high_;
  bool both_;
};

/// Changes brightness, contrast, saturation and hue at random, in random order.
///
///     tutti::data::ColorJitter{.brightness = 0.4, .contrast = 0.4, .saturation = {0.5, 1.5}}
///
/// Draws the order, then brightness, contrast, saturation and hue, those that change. Each image of
/// a batch has draws of its own.
struct ColorJitter {
  JitterRange brightness{};  ///< >= 0
  JitterRange contrast{};    ///< >= 0
  JitterRange saturation{};  ///< >= 0
  JitterRange hue{};         ///< between -0.5 and 0.5

  /// Throws c10::Error (ValueError) when an option is out of range.
  [[nodiscard]] ColorFactors draw(Rng& rng) const;

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const;
  friend bool operator==(const ColorJitter&, const ColorJitter&) = default;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/color_jitter.inl.hpp>
#endif
