// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <tutti/data/image_ops.hpp>

/// Sizes and boxes of images, and how an image of some size becomes one of another.
namespace tutti::data {

/// Rows and columns of an image: `224` for a square, `{224, 192}`.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;  ///< 0: one number was given; a square, or Resize's shorter side

  constexpr ImageSize() = default;
  constexpr ImageSize(std::int64_t side) : height(side) {}  // NOLINT: a number is a size
  constexpr ImageSize(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}

  /// The same with both sides given.
  [[nodiscard]] constexpr ImageSize square() const { return {height, width == 0 ? height : width}; }
  friend constexpr bool operator==(const ImageSize&, const ImageSize&) = default;
};

/// A box of an image, in pixels: rows [top, top + height), columns [left, left + width).
struct CropBox {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;

  friend constexpr bool operator==(const CropBox&, const CropBox&) = default;
};

/// Numbers from `low` to `high`, of which a transform draws one.
struct Range {
  double low = 0;
  double high = 0;

  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// What is taken of an image, to which size it is scaled, and what is kept of that.
///
/// Transforms that say it before they see any pixel, as `Framing (height, width, rng)`, let
/// ImageFolderDataset decode no more of a file than they need: Resize, ResizeAndCrop,
/// RandomResizedCrop, or a function of your own.
struct Framing {
  CropBox box{};     ///< of the image; height 0: all of it
  ImageSize size{};  ///< of the box when it is scaled; height 0: as it is
  CropBox kept{};    ///< of the scaled box; height 0: all of it
  Interpolation interpolation = Interpolation::bilinear;

  /// By how much an image of that size can be made smaller before: 1, 2, 4 or 8. What is left of
  /// the box has at least `gap` times the pixels of `size`, each way. gap: >= 1.
  [[nodiscard]] constexpr int reduction(std::int64_t height, std::int64_t width, double gap) const {
    if (size.height == 0) {
      return 1;
    }
    const bool all = box.height == 0;
    const auto fits = [gap](std::int64_t pixels, std::int64_t wanted, int by) {
      return static_cast<double>(pixels) >= gap * static_cast<double>(wanted) * by;
    };
    int by = 8;
    while (by > 1 && !(fits(all ? height : box.height, size.height, by) &&
                       fits(all ? width : box.width, size.square().width, by))) {
      by /= 2;
    }
    return by;
  }

  /// The same for an image of rows x columns that was made smaller from height x width. A box is
  /// moved by less than a pixel of the smaller image.
  [[nodiscard]] Framing reduced(std::int64_t height, std::int64_t width, std::int64_t rows,
                                std::int64_t columns) const {
    Framing out = *this;
    if (box.height == 0 || (rows == height && columns == width)) {
      return out;
    }
    const auto along = [](std::int64_t first, std::int64_t length, std::int64_t from,
                          std::int64_t to, std::int64_t& at, std::int64_t& pixels) {
      const double scale = static_cast<double>(to) / static_cast<double>(from);
      const auto edge = [&](std::int64_t place) {
        return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(place) * scale));
      };
      at = std::clamp<std::int64_t>(edge(first), 0, to - 1);
      pixels = std::clamp<std::int64_t>(edge(first + length) - at, 1, to - at);
    };
    along(box.top, box.height, height, rows, out.box.top, out.box.height);
    along(box.left, box.width, width, columns, out.box.left, out.box.width);
    return out;
  }

  friend constexpr bool operator==(const Framing&, const Framing&) = default;
};

}  // namespace tutti::data
