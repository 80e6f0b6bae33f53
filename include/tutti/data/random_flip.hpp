// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/per_image.hpp>
#include <tutti/data/image_geometry.hpp>

/// Transforms of a loader that turn images over.
///
/// Images are uint8 or floating, [C, H, W] or [N, C, H, W]; each of a batch has a draw of its own.
/// Throw c10::Error (ValueError) for others, and when p is out of range.
/// Source: torchvision, `transforms.v2`.
namespace tutti::data {

namespace detail {

template <class Flip>
at::Tensor random_flip(const at::Tensor& images, double p, Rng& rng, const char* what,
                       const Flip& flip) {
  expect_images(images, what);
  TUTTI_CHECK_VALUE(p >= 0 && p <= 1, what, ": p is ", p, ", expected a number from 0 to 1");
  return per_image(images, rng, {}, [&](const at::Tensor& image, Rng& draws) {
    return draws.uniform() < p ? flip(image) : image;
  });
}

}  // namespace detail

/// Exchanges left and right with a probability. Draws one uniform number per image.
struct RandomHorizontalFlip {
  double p = 0.5;  ///< in [0, 1]

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const {
    return detail::random_flip(images, p, rng, "RandomHorizontalFlip", horizontal_flip);
  }
  friend bool operator==(const RandomHorizontalFlip&, const RandomHorizontalFlip&) = default;
};

/// Exchanges above and below with a probability. Draws one uniform number per image.
struct RandomVerticalFlip {
  double p = 0.5;  ///< in [0, 1]

  at::Tensor operator()(const at::Tensor& images, Rng& rng) const {
    return detail::random_flip(images, p, rng, "RandomVerticalFlip", vertical_flip);
  }
  friend bool operator==(const RandomVerticalFlip&, const RandomVerticalFlip&) = default;
};

}  // namespace tutti::data
