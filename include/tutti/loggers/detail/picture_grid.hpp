// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/loggers/detail/png.hpp>

namespace tutti::detail {

// Side by side, eight in a row, two black pixels between them.
//
// Floats are in [0, 1], what is outside is clamped; integers in [0, 255]. Waits for the device.
// Throws c10::ValueError when there are not 1 to 4 channels or not 3 or 4 dimensions.
inline Picture picture_grid(const LoggedImages& logged) {
  at::Tensor images = logged.images.detach();
  if (images.dim() == 3) {
    images = images.unsqueeze(0);
  }
  if (images.dim() == 4 && !logged.channels_last) {
    images = images.permute({0, 2, 3, 1});
  }
  TUTTI_CHECK_VALUE(
      images.dim() == 4 && images.size(3) >= 1 && images.size(3) <= 4 && images.numel() > 0,
      "images \"", logged.name, "\" are ", logged.images.sizes(), ", expected ",
      logged.channels_last ? "[N, H, W, C]" : "[N, C, H, W]",
      " or one less a dimension, with 1 to 4 channels");
  if (images.scalar_type() == at::kBool) {
    images = images.to(at::kByte).mul(255);
  } else if (images.is_floating_point()) {
    images = images.to(at::kFloat).nan_to_num(0.0).clamp(0, 1).mul(255).round();
  }
  images = images.clamp(0, 255).to(at::kCPU, at::kByte).contiguous();

  constexpr std::int64_t in_row = 8;
  constexpr std::int64_t gap = 2;
  const std::int64_t count = images.size(0);
  const std::int64_t height = images.size(1);
  const std::int64_t width = images.size(2);
  const std::int64_t columns = std::min(in_row, count);
  const std::int64_t rows = (count + columns - 1) / columns;
  Picture grid{.height = rows * (height + gap) - gap,
               .width = columns * (width + gap) - gap,
               .channels = images.size(3)};
  grid.pixels.assign(static_cast<std::size_t>(grid.height * grid.width * grid.channels), '\0');
  const auto* from = reinterpret_cast<const char*>(images.const_data_ptr<std::uint8_t>());
  const std::int64_t line = width * grid.channels;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t top = i / columns * (height + gap);
    const std::int64_t left = i % columns * (width + gap);
    for (std::int64_t y = 0; y < height; ++y) {
      const std::int64_t to = ((top + y) * grid.width + left) * grid.channels;
      std::memcpy(grid.pixels.data() + to, from + (i * height + y) * line,
                  static_cast<std::size_t>(line));
    }
  }
  return grid;
}

}  // namespace tutti::detail
