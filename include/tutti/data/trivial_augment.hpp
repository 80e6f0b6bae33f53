// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augmentations.hpp>
#include <tutti/data/image_ops.hpp>

/// TrivialAugment: one random operation of random strength.
namespace tutti::data {

/// An operation of TrivialAugmentWide and its strength.
struct TrivialDraw {
  std::optional<Augmentation> operation{};  ///< nothing: the image stays as it is
  double magnitude = 0;  ///< factors less 1; pixels to the right or down; degrees; columns per row;
                         ///< bits that are kept; where solarize begins, of 0 to 1
};

/// Does it. images: uint8 [C, H, W] or [N, C, H, W] on the CPU; C is 1 or 3 for color and contrast.
/// interpolation: nearest or bilinear. Throws c10::Error (ValueError) for others.
at::Tensor trivial_augment(const at::Tensor& images, const TrivialDraw& draw,
                           Interpolation interpolation = Interpolation::nearest);

/// Does to every image one operation out of fourteen, of which one is nothing, with a strength out
/// of `num_magnitude_bins`: nothing has to be tuned.
///
/// Draws operation, strength, sign. Images are uint8, or floating from 0 to 1 (rounded to 256
/// values), [C, H, W] or [N, C, H, W] on the CPU, each of a batch with draws of its own. Equal in
/// every bit to torchvision's on Pillow's images. Throws c10::Error (ValueError) for others, and
/// when an option is out of range.
/// Source: Mueller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data
/// Augmentation", ICCV 2021; torchvision, `transforms.v2.TrivialAugmentWide`.
struct TrivialAugmentWide {
  std::int64_t num_magnitude_bins = 31;                  ///< >= 2
  Interpolation interpolation = Interpolation::nearest;  ///< or bilinear

  [[nodiscard]] TrivialDraw draw(Rng& rng) const;

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const {
    return map_images(images, rng, [this](const at::Tensor& image, Rng& draws) {
      return trivial_augment(image, draw(draws), interpolation);
    });
  }
  friend bool operator==(const TrivialAugmentWide&, const TrivialAugmentWide&) = default;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/trivial_augment.inl.hpp>
#endif
