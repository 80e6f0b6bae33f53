// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/crops.hpp>

namespace tutti::data {

TUTTI_INLINE ImageSize Resize::target(std::int64_t height, std::int64_t width) const {
  detail::expect_size(size, "Resize");
  TUTTI_CHECK_VALUE(height >= 1 && width >= 1, "Resize: the image has ", height, " x ", width,
                    " pixels, expected 1 or more each way");
  if (size.width != 0) {
    TUTTI_CHECK_VALUE(max_size == 0, "Resize: max_size is ", max_size,
                      " and both sides are given, expected one number for the shorter side");
    return size;
  }
  TUTTI_CHECK_VALUE(max_size == 0 || max_size > size.height, "Resize: max_size is ", max_size,
                    ", expected more than the size, ", size.height, ", or 0 for any");
  std::int64_t shorter = size.height;
  std::int64_t longer = size.height * std::max(height, width) / std::min(height, width);
  if (max_size > 0 && longer > max_size) {
    shorter = std::max<std::int64_t>(max_size * shorter / longer, 1);
    longer = max_size;
  }
  return height <= width ? ImageSize{shorter, longer} : ImageSize{longer, shorter};
}

TUTTI_INLINE at::Tensor Resize::operator()(const at::Tensor& images) const {
  detail::expect_images(images, "Resize");
  const auto [rows, columns] = target(images.size(-2), images.size(-1));
  return resize_image(images, rows, columns, interpolation);
}

TUTTI_INLINE Padding RandomCrop::frame(std::int64_t height, std::int64_t width) const {
  const auto [rows, columns] = size.square();
  Padding out = padding;
  const auto widen = [this](std::int64_t side, std::int64_t wanted, std::int64_t& before,
                            std::int64_t& after) {
    const std::int64_t lacks = wanted - (side + before + after);
    if (pad_if_needed && lacks > 0) {
      before += lacks;
      after += lacks;
    }
  };
  widen(height, rows, out.top, out.bottom);
  widen(width, columns, out.left, out.right);
  return out;
}

TUTTI_INLINE CropBox RandomCrop::draw(std::int64_t height, std::int64_t width, Rng& rng) const {
  detail::expect_size(size, "RandomCrop");
  const auto [rows, columns] = size.square();
  const Padding wide = frame(height, width);
  const std::int64_t down = height + wide.top + wide.bottom - rows;
  const std::int64_t across = width + wide.left + wide.right - columns;
  TUTTI_CHECK_VALUE(down >= 0 && across >= 0, "RandomCrop: a piece of ", rows, " x ", columns,
                    " does not fit into an image of ", height, " x ", width,
                    " with its frame; take a smaller one, a wider frame or pad_if_needed");
  CropBox box{.top = -wide.top, .left = -wide.left, .height = rows, .width = columns};
  box.top += down > 0 ? rng.integer(0, down + 1) : 0;
  box.left += across > 0 ? rng.integer(0, across + 1) : 0;
  return box;
}

TUTTI_INLINE at::Tensor RandomCrop::operator()(const at::Tensor& images, Rng& rng) const {
  detail::expect_images(images, "RandomCrop");
  return detail::per_image(images, rng, size, [this](const at::Tensor& image, Rng& draws) {
    CropBox box = draw(image.size(1), image.size(2), draws);
    if (padding_mode == PaddingMode::constant && fill == 0) {
      return crop(image, box);  // 0 outside
    }
    const Padding wide = frame(image.size(1), image.size(2));
    box.top += wide.top;
    box.left += wide.left;
    return crop(pad(image, wide, fill, padding_mode), box);
  });
}

TUTTI_INLINE CropBox RandomResizedCrop::draw(std::int64_t height, std::int64_t width,
                                             Rng& rng) const {
  detail::expect_ranges(scale, ratio, "RandomResizedCrop");
  const auto whole = [](double x) {
    return std::max<std::int64_t>(static_cast<std::int64_t>(std::nearbyint(x)), 1);
  };
  for (int tries = 0; tries < 10; ++tries) {
    const auto [rows, columns] = detail::draw_box(height, width, scale, ratio, rng);
    if (columns > 0 && columns <= width && rows > 0 && rows <= height) {
      const std::int64_t top = rng.integer(0, height - rows + 1);
      return {top, rng.integer(0, width - columns + 1), rows, columns};
    }
  }
  std::int64_t rows = height;
  std::int64_t columns = width;
  const double shape = static_cast<double>(width) / static_cast<double>(height);
  if (shape < ratio.low) {
    rows = whole(static_cast<double>(width) / ratio.low);
  } else if (shape > ratio.high) {
    columns = whole(static_cast<double>(height) * ratio.high);
  }
  return {(height - rows) / 2, (width - columns) / 2, rows, columns};
}

TUTTI_INLINE at::Tensor RandomResizedCrop::operator()(const at::Tensor& images, Rng& rng) const {
  detail::expect_images(images, "RandomResizedCrop");
  detail::expect_size(size, "RandomResizedCrop");
  return detail::per_image(images, rng, size, [this](const at::Tensor& image, Rng& draws) {
    const CropBox box = draw(image.size(1), image.size(2), draws);
    return resized_crop(image, box, size, interpolation);
  });
}

}  // namespace tutti::data
