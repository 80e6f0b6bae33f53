// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/progressive_resizing.hpp>

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

namespace tutti::detail {

TUTTI_INLINE at::Tensor scale_images(const at::Tensor& x, const Shrink& to, Interpolation how) {
  const std::array<std::int64_t, 2> size{to.height(), to.width()};
  switch (how) {
    case Interpolation::nearest:
      break;
    case Interpolation::bilinear:
      return at::upsample_bilinear2d(x, size, /*align_corners=*/false);
    case Interpolation::antialias:
      return at::_upsample_bilinear2d_aa(x, size, /*align_corners=*/false);
  }
  return to.images(x);
}

TUTTI_INLINE functional::ResizedBatch shrink_batch(const at::Tensor& input,
                                                   const at::Tensor& target, Rng& rng,
                                                   const functional::ResizeOptions& options,
                                                   const Shrink& to) {
  TUTTI_CHECK_VALUE(!options.resize_targets || target.dim() == 3 || target.dim() == 4,
                    "ProgressiveResizing: resize_targets is set and the targets are ",
                    target.sizes(), ", expected [N, H, W] or [N, C, H, W]");
  if (options.mode == ResizeMode::resize) {
    return {scale_images(input, to, options.interpolation),
            options.resize_targets ? to.targets(target, input.sizes()) : target};
  }
  const std::int64_t top = rng.integer(0, input.size(2) - to.height() + 1);
  const std::int64_t left = rng.integer(0, input.size(3) - to.width() + 1);
  return {to.piece(input, input.sizes(), top, left),
          options.resize_targets ? to.piece(target, input.sizes(), top, left) : target};
}

// The axes of x from `first` on scaled to the nearest number.
TUTTI_INLINE at::Tensor scale_axes(const at::Tensor& x, std::int64_t first, double scale) {
  at::Tensor out = x;
  for (std::int64_t axis = first; axis < x.dim(); ++axis) {
    const auto side = static_cast<std::int64_t>(static_cast<double>(x.size(axis)) * scale);
    const Shrink shrink(side, side, scale);
    out = out.index_select(axis, as_tensor(shrink.sources(x.size(axis), side), x.device()));
  }
  return out;
}

// What has one axis, or three, in the place of an image's two.
TUTTI_INLINE functional::ResizedBatch shrink_others(const at::Tensor& input,
                                                    const at::Tensor& target, double scale,
                                                    const functional::ResizeOptions& options) {
  TUTTI_CHECK_VALUE(
      options.mode == ResizeMode::resize && options.interpolation == Interpolation::nearest,
      "resize_batch: the input is ", input.sizes(),
      ", expected images [N, C, H, W]; of others only mode resize to the nearest");
  TUTTI_CHECK_VALUE(!options.resize_targets || target.dim() > 2,
                    "resize_batch: resize_targets is set and the targets are ", target.sizes(),
                    ", expected three dimensions or more");
  const auto first = [](const at::Tensor& y) { return y.is_floating_point() ? 2 : 1; };
  return {scale_axes(input, 2, scale),
          options.resize_targets ? scale_axes(target, first(target), scale) : target};
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE ResizedBatch resize_batch(const at::Tensor& input, const at::Tensor& target,
                                       double scale_factor, Rng& rng,
                                       const ResizeOptions& options) {
  TUTTI_CHECK_VALUE(scale_factor > 0, "resize_batch: scale_factor is ", scale_factor,
                    ", expected more than 0");
  if (scale_factor >= 1) {
    return {input, target};
  }
  if (input.dim() == 3 || input.dim() == 5) {
    return ::tutti::detail::shrink_others(input, target, scale_factor, options);
  }
  ::tutti::detail::expect_images(input);
  const auto scaled = [&](std::int64_t side) {
    return static_cast<std::int64_t>(static_cast<double>(side) * scale_factor);
  };
  const ::tutti::detail::Shrink shrink(scaled(input.size(2)), scaled(input.size(3)), scale_factor);
  return ::tutti::detail::shrink_batch(input, target, rng, options, shrink);
}

TUTTI_INLINE ResizedBatch resize_batch_to(const at::Tensor& input, const at::Tensor& target,
                                          std::int64_t height, std::int64_t width, Rng& rng,
                                          const ResizeOptions& options) {
  ::tutti::detail::expect_images(input);
  TUTTI_CHECK_VALUE(height <= input.size(2) && width <= input.size(3), "resize_batch_to: ", height,
                    " x ", width, " is larger than the input ", input.sizes());
  if (height == input.size(2) && width == input.size(3)) {
    return {input, target};
  }
  const ::tutti::detail::Shrink shrink(height, width);
  return ::tutti::detail::shrink_batch(input, target, rng, options, shrink);
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE std::int64_t ProgressiveResizing::width_at(double elapsed, std::int64_t width) const {
  const double scale = scale_at(elapsed);
  const double steps =
      std::nearbyint(static_cast<double>(width) * scale / static_cast<double>(size_increment));
  const auto rounded = static_cast<std::int64_t>(steps) * size_increment;
  return scale < 1 ? std::min(rounded, width) : width;
}

TUTTI_INLINE void ProgressiveResizing::apply(AfterDataloader, State& state) {
  at::Tensor& x = detail::inputs_of(state.batch, input_key);
  detail::expect_images(x);
  const double elapsed = detail::elapsed(state, whole_units, name);
  const std::int64_t full = x.size(3);
  const std::int64_t width = width_at(elapsed, full);
  const functional::ResizeOptions options{
      .mode = mode, .interpolation = interpolation, .resize_targets = resize_targets};
  at::Tensor none;
  at::Tensor& target = resize_targets ? detail::targets_of(state.batch, target_key) : none;
  const auto [input, resized] =
      functional::resize_batch_to(x, target, x.size(2) * width / full, width, rng, options);
  x = input;
  target = resized;
  log(state, x.size(2), x.size(3), elapsed);
}

TUTTI_INLINE std::optional<fused::Take> ProgressiveResizing::pixels(fused::Frame frame,
                                                                    State& state) {
  if (!detail::means_inputs(state.batch, input_key) || resize_targets ||
      (mode == ResizeMode::resize && interpolation != Interpolation::nearest)) {
    return std::nullopt;
  }
  frame.elapsed = detail::elapsed(state, whole_units, name);
  fused::Take take = pixels(frame);
  const fused::Frame smaller = fused::after(frame, take);
  log(state, smaller.height, smaller.width, frame.elapsed);
  return take;
}

TUTTI_INLINE void ProgressiveResizing::log(const State& state, std::int64_t height,
                                           std::int64_t width, double elapsed) const {
  state.log_metrics({{"progressive_resizing/height", static_cast<double>(height)},
                     {"progressive_resizing/width", static_cast<double>(width)},
                     {"progressive_resizing/scale_factor", scale_at(elapsed)}});
}

}  // namespace tutti
