// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/pixel_grid.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

/// The geometry of making images smaller.
namespace tutti::detail {

void expect_images(const at::Tensor& input);

// To which size images become smaller.
class Shrink {
 public:
  Shrink(std::int64_t height, std::int64_t width, std::optional<double> scale = std::nullopt)
      : height_(height), width_(width), scale_(scale) {
    TUTTI_CHECK_VALUE(height >= 1 && width >= 1, "ProgressiveResizing: images would become ",
                      height, " x ", width, "; take a larger scale, or a smaller size_increment");
  }

  // Images [N, C, H, W] scaled to the nearest pixel.
  [[nodiscard]] at::Tensor images(const at::Tensor& x) const { return nearest(x, height_, width_); }

  // Targets [N, H, W] or [N, C, H, W], of an input of that size, scaled by as much.
  [[nodiscard]] at::Tensor targets(const at::Tensor& y, at::IntArrayRef input) const {
    return nearest(y, along(y.size(-2), height_, input[2]), along(y.size(-1), width_, input[3]));
  }

  // The piece of images or targets whose corner, in an input of that size, is (top, left).
  [[nodiscard]] at::Tensor piece(const at::Tensor& x, at::IntArrayRef input, std::int64_t top,
                                 std::int64_t left) const;

  [[nodiscard]] std::int64_t height() const { return height_; }
  [[nodiscard]] std::int64_t width() const { return width_; }

  // Which pixel each one comes from. With a scale as torch.nn.functional.interpolate finds them.
  [[nodiscard]] Indices sources(std::int64_t from, std::int64_t to) const;

 private:
  // The side that one of `side` gets where the input's `from` becomes `to`.
  [[nodiscard]] std::int64_t along(std::int64_t side, std::int64_t to, std::int64_t from) const;

  [[nodiscard]] at::Tensor nearest(const at::Tensor& x, std::int64_t height,
                                   std::int64_t width) const {
    return take_grid(x, sources(x.size(-2), height), sources(x.size(-1), width));
  }

  std::int64_t height_;
  std::int64_t width_;
  std::optional<double> scale_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void expect_images(const at::Tensor& input) {
  TUTTI_CHECK_VALUE(input.dim() == 4, "ProgressiveResizing: the input is ", input.sizes(),
                    ", expected images [N, C, H, W]");
}

TUTTI_INLINE at::Tensor Shrink::piece(const at::Tensor& x, at::IntArrayRef input, std::int64_t top,
                                      std::int64_t left) const {
  const std::int64_t rows = along(x.size(-2), height_, input[2]);
  const std::int64_t columns = along(x.size(-1), width_, input[3]);
  const std::int64_t first_row = std::min(top * x.size(-2) / input[2], x.size(-2) - rows);
  const std::int64_t first_column = std::min(left * x.size(-1) / input[3], x.size(-1) - columns);
  return x.narrow(-2, first_row, rows)
      .narrow(-1, first_column, columns)
      .contiguous(x.suggest_memory_format());
}

TUTTI_INLINE Indices Shrink::sources(std::int64_t from, std::int64_t to) const {
  Indices out(static_cast<std::size_t>(to));
  const auto step = static_cast<float>(1 / scale_.value_or(1));
  for (std::int64_t i = 0; i < to; ++i) {
    out[static_cast<std::size_t>(i)] =
        scale_ ? std::min(static_cast<std::int64_t>(std::floor(static_cast<float>(i) * step)),
                          from - 1)
               : i * from / to;
  }
  return out;
}

TUTTI_INLINE std::int64_t Shrink::along(std::int64_t side, std::int64_t to,
                                        std::int64_t from) const {
  return scale_ ? static_cast<std::int64_t>(static_cast<double>(side) * *scale_) : side * to / from;
}

}  // namespace tutti::detail

#endif
