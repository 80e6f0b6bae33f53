// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/random_erasing.hpp>

namespace tutti::data {

TUTTI_INLINE std::optional<CropBox> draw_erasing(std::int64_t height, std::int64_t width, double p,
                                                 const Range& scale, const Range& ratio, Rng& rng) {
  TUTTI_CHECK_VALUE(p >= 0 && p <= 1, "RandomErasing: p is ", p, ", expected a number from 0 to 1");
  detail::expect_ranges(scale, ratio, "RandomErasing");
  if (rng.uniform() >= p) {
    return std::nullopt;
  }
  for (int tries = 0; tries < 10; ++tries) {
    // Its ratio is height by width.
    const auto [columns, rows] = detail::draw_box(height, width, scale, ratio, rng);
    if (rows < height && columns < width) {
      const std::int64_t top = rng.integer(0, height - rows + 1);
      return CropBox{top, rng.integer(0, width - columns + 1), rows, columns};
    }
  }
  return std::nullopt;
}

TUTTI_INLINE at::Tensor RandomErasing::operator()(const at::Tensor& images, Rng& rng) const {
  detail::expect_images(images, "RandomErasing");
  TUTTI_CHECK_VALUE(!random || images.is_floating_point(),
                    "RandomErasing: random values are normal numbers, for normalised floats, and "
                    "the image is ",
                    images.scalar_type(), images.sizes(), "; put it behind Normalize");
  return detail::per_image(images, rng, {}, [this](const at::Tensor& image, Rng& draws) {
    const auto box = draw(image.size(1), image.size(2), draws);
    if (!box) {
      return image;
    }
    if (!random) {
      return erase(image, *box, value);
    }
    constexpr std::int64_t seeds = std::int64_t{1} << 62;
    const auto seed = static_cast<std::uint64_t>(draws.integer(0, seeds));
    const at::Tensor noise = image.new_empty({image.size(0), box->height, box->width}, at::kFloat)
                                 .cpu()
                                 .normal_(0, 1, at::detail::createCPUGenerator(seed));
    return erase(image, *box, noise);
  });
}

}  // namespace tutti::data
