// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/per_image.hpp>
#include <tutti/data/detail/random_box.hpp>
#include <tutti/data/framing.hpp>
#include <tutti/data/image_geometry.hpp>

/// A transform of a loader that erases a box of some images.
namespace tutti::data {

/// The box that RandomErasing erases of an image of that size, or nothing. Draws a uniform number,
/// then up to ten times area and shape, until the box is smaller than the image each way, then row
/// and column.
std::optional<CropBox> draw_erasing(std::int64_t height, std::int64_t width, double p,
                                    const Range& scale, const Range& ratio, Rng& rng);

/// Replaces the pixels of a random box, with a probability.
///
///     tutti::data::RandomErasing{.p = 0.25}                     // of bytes: black
///     tutti::data::RandomErasing{.p = 0.25, .random = true}     // of floats, behind Normalize
///
/// Images are uint8 or floating, [C, H, W] or [N, C, H, W]; each of a batch has draws of its own.
/// Throws c10::Error (ValueError) for others, and when an option is out of range.
/// Source: Zhong et al., "Random Erasing Data Augmentation", AAAI 2020; torchvision,
/// `transforms.v2.RandomErasing`.
struct RandomErasing {
  double p = 0.5;                ///< in [0, 1]
  Range scale{0.02, 0.33};       ///< area of the box, as part of the image's
  Range ratio{0.3, 3.3};         ///< height by width of the box; its logarithm is uniform; > 0
  std::vector<double> value{0};  ///< what is written there; one, or one for each channel
  bool random = false;           ///< in place of value: normal numbers, for normalised floats

  /// The box of an image of that size, or nothing.
  [[nodiscard]] std::optional<CropBox> draw(std::int64_t height, std::int64_t width,
                                            Rng& rng) const {
    return draw_erasing(height, width, p, scale, ratio, rng);
  }

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const;
  friend bool operator==(const RandomErasing&, const RandomErasing&) = default;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/random_erasing.inl.hpp>
#endif
