// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/image_geometry.hpp>

namespace tutti::data {

namespace detail {

// Which of `side` pixels, 0 to side - 1, each of a framed line shows.
TUTTI_INLINE at::Tensor framed_line(std::int64_t side, std::int64_t before, std::int64_t after,
                                    PaddingMode mode, const at::Tensor& beside) {
  const bool twice = mode == PaddingMode::symmetric;
  TUTTI_CHECK_VALUE(
      side >= 1 &&
          (mode == PaddingMode::edge || std::max(before, after) <= (twice ? side : side - 1)),
      "pad: the padding is ", before, " and ", after, " of a side of ", side, ", expected ",
      mode == PaddingMode::edge ? "a side of 1 or more"
      : twice                   ? "at most the side"
                                : "less than the side",
      " in this mode");
  std::vector<std::int64_t> at;
  for (std::int64_t i = -before; i < side + after; ++i) {
    const std::int64_t edge = twice ? 1 : 0;
    at.push_back(mode == PaddingMode::edge ? std::clamp<std::int64_t>(i, 0, side - 1)
                 : i < 0                   ? -i - edge
                 : i >= side               ? 2 * side - 2 - i + edge
                                           : i);
  }
  return at::tensor(at, at::TensorOptions().dtype(at::kLong)).to(beside.device());
}

}  // namespace detail

TUTTI_INLINE at::Tensor crop(const at::Tensor& images, const CropBox& box) {
  detail::expect_images(images, "crop");
  const std::int64_t height = images.size(-2);
  const std::int64_t width = images.size(-1);
  TUTTI_CHECK_VALUE(box.height >= 1 && box.width >= 1, "crop: the box has ", box.height, " x ",
                    box.width, " pixels, expected 1 or more each way");
  const auto window = [&](std::int64_t top, std::int64_t left, std::int64_t rows,
                          std::int64_t columns) {
    return images.narrow(-2, top, rows).narrow(-1, left, columns);
  };
  const std::int64_t top = std::clamp<std::int64_t>(box.top, 0, height);
  const std::int64_t left = std::clamp<std::int64_t>(box.left, 0, width);
  const std::int64_t rows = std::clamp(box.top + box.height, top, height) - top;
  const std::int64_t columns = std::clamp(box.left + box.width, left, width) - left;
  if (rows == box.height && columns == box.width) {
    return window(top, left, rows, columns);
  }
  std::vector<std::int64_t> shape = images.sizes().vec();
  shape[shape.size() - 2] = box.height;
  shape[shape.size() - 1] = box.width;
  at::Tensor out = images.new_zeros(shape);
  if (rows > 0 && columns > 0) {
    out.narrow(-2, top - box.top, rows)
        .narrow(-1, left - box.left, columns)
        .copy_(window(top, left, rows, columns));
  }
  return out;
}

TUTTI_INLINE at::Tensor center_crop(const at::Tensor& images, const ImageSize& size) {
  detail::expect_images(images, "center_crop");
  detail::expect_size(size, "center_crop");
  const auto [rows, columns] = size.square();
  const auto lacks = [](std::int64_t side, std::int64_t wanted) {
    return std::max<std::int64_t>(wanted - side, 0);
  };
  const std::int64_t down = lacks(images.size(-2), rows);
  const std::int64_t across = lacks(images.size(-1), columns);
  const at::Tensor framed =
      down + across == 0
          ? images
          : pad(images, Padding{across / 2, down / 2, (across + 1) / 2, (down + 1) / 2});
  return crop(framed, {detail::middle(framed.size(-2), rows),
                       detail::middle(framed.size(-1), columns), rows, columns});
}

TUTTI_INLINE at::Tensor resized_crop(const at::Tensor& images, const CropBox& box,
                                     const ImageSize& size, Interpolation interpolation) {
  detail::expect_size(size, "resized_crop");
  const auto [rows, columns] = size.square();
  return resize_image(crop(images, box), rows, columns, interpolation);
}

TUTTI_INLINE at::Tensor pad(const at::Tensor& images, const Padding& padding, double fill,
                            PaddingMode mode) {
  detail::expect_images(images, "pad");
  const auto [left, top, right, bottom] = padding;
  TUTTI_CHECK_VALUE(std::min({left, top, right, bottom}) >= 0, "pad: the padding is ", left, ", ",
                    top, ", ", right, ", ", bottom, ", expected 0 or more on each side");
  TUTTI_CHECK_VALUE(images.is_floating_point() || (fill >= 0 && fill <= 255), "pad: fill is ", fill,
                    ", expected 0 to 255 for bytes");
  const std::int64_t height = images.size(-2);
  const std::int64_t width = images.size(-1);
  if (mode != PaddingMode::constant) {
    const at::Tensor rows = detail::framed_line(height, top, bottom, mode, images);
    const at::Tensor columns = detail::framed_line(width, left, right, mode, images);
    return images.index_select(-2, rows).index_select(-1, columns);
  }
  std::vector<std::int64_t> shape = images.sizes().vec();
  shape[shape.size() - 2] += top + bottom;
  shape[shape.size() - 1] += left + right;
  at::Tensor out = images.new_full(shape, fill);
  out.narrow(-2, top, height).narrow(-1, left, width).copy_(images);
  return out;
}

TUTTI_INLINE at::Tensor horizontal_flip(const at::Tensor& images) {
  detail::expect_images(images, "horizontal_flip");
  return images.flip(-1);
}

TUTTI_INLINE at::Tensor vertical_flip(const at::Tensor& images) {
  detail::expect_images(images, "vertical_flip");
  return images.flip(-2);
}

TUTTI_INLINE at::Tensor erase(const at::Tensor& images, const CropBox& box,
                              const at::Tensor& value) {
  detail::expect_images(images, "erase");
  TUTTI_CHECK_VALUE(box.top >= 0 && box.left >= 0 && box.height >= 0 && box.width >= 0 &&
                        box.top + box.height <= images.size(-2) &&
                        box.left + box.width <= images.size(-1),
                    "erase: the box begins at (", box.top, ", ", box.left, ") and has ", box.height,
                    " x ", box.width, " pixels, expected one inside of images ", images.sizes());
  at::Tensor out = images.clone();
  out.narrow(-2, box.top, box.height).narrow(-1, box.left, box.width).copy_(value);
  return out;
}

TUTTI_INLINE at::Tensor erase(const at::Tensor& images, const CropBox& box,
                              const std::vector<double>& value) {
  detail::expect_images(images, "erase");
  const auto values = static_cast<std::int64_t>(value.size());
  TUTTI_CHECK_VALUE(values == 1 || values == images.size(-3), "erase: there are ", values,
                    " values, expected one, or one for each of ", images.size(-3), " channels");
  return erase(images, box,
               at::tensor(value, at::TensorOptions().dtype(at::kDouble)).view({values, 1, 1}));
}

TUTTI_INLINE at::Tensor normalize(const at::Tensor& images, const std::vector<double>& mean,
                                  const std::vector<double>& std) {
  detail::expect_images(images, "normalize");
  const auto fits = [&](const std::vector<double>& values) {
    return values.empty() || static_cast<std::int64_t>(values.size()) == images.size(-3);
  };
  TUTTI_CHECK_VALUE(fits(mean) && fits(std), "normalize: mean has ", mean.size(),
                    " values and std ", std.size(), ", expected none or one for each of ",
                    images.size(-3), " channels");
  for (const double value : std) {
    TUTTI_CHECK_VALUE(value > 0, "normalize: std is ", value, ", expected more than 0");
  }
  at::Tensor out = images.scalar_type() == at::kByte ? images.to(at::kFloat).div_(255) : images;
  const auto column = [&](const std::vector<double>& values) {
    return at::tensor(values, at::TensorOptions().dtype(out.scalar_type()))
        .view({-1, 1, 1})
        .to(out.device());
  };
  out = mean.empty() ? out : out.sub(column(mean));
  return std.empty() ? out : out.div(column(std));
}

}  // namespace tutti::data
