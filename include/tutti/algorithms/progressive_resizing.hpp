// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <tutti/algorithms/detail/elapsed.hpp>
#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/algorithms/detail/resize.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>

/// ProgressiveResizing: small images first.
namespace tutti {

/// How images are made smaller.
enum class ResizeMode : std::uint8_t {
  crop,    ///< a random piece is cut out
  resize,  ///< the whole image is scaled
};

/// "crop", "resize".
constexpr std::string_view to_string(ResizeMode mode) {
  return mode == ResizeMode::crop ? "crop" : "resize";
}

/// What a pixel of a scaled image is made of.
enum class Interpolation : std::uint8_t {
  nearest,    ///< one pixel
  bilinear,   ///< the four around it; images are floating or uint8
  antialias,  ///< all that it covers, linearly weighted; likewise
};

/// "nearest", "bilinear", "antialias".
constexpr std::string_view to_string(Interpolation interpolation) {
  return interpolation == Interpolation::nearest    ? "nearest"
         : interpolation == Interpolation::bilinear ? "bilinear"
                                                    : "antialias";
}

namespace functional {

/// How resize_batch makes images smaller.
struct ResizeOptions {
  ResizeMode mode = ResizeMode::resize;
  Interpolation interpolation = Interpolation::nearest;  ///< of mode resize, for images
  bool resize_targets = false;                           ///< targets too, to the nearest pixel
};

/// What resize_batch gives.
struct ResizedBatch {
  at::Tensor input;   ///< [N, C, H', W']
  at::Tensor target;  ///< made smaller likewise, or the very tensor that was given
};

}  // namespace functional

namespace detail {

at::Tensor scale_images(const at::Tensor& x, const Shrink& to, Interpolation how);

functional::ResizedBatch shrink_batch(const at::Tensor& input, const at::Tensor& target, Rng& rng,
                                      const functional::ResizeOptions& options, const Shrink& to);

}  // namespace detail

namespace functional {

/// Makes the images of a batch, and its targets if asked for, `scale_factor` times as large.
///
/// input: [N, C, H, W]. target: any; with resize_targets [N, H, W] or [N, C, H, W] of any size and
/// type. scale_factor: > 0; from 1 on, the very tensors come back. Sides are rounded down. Mode
/// crop draws top, then left of one piece for all images.
/// Throws c10::Error (ValueError) when shapes or scale_factor do not fit or nothing would be left.
/// Source: MosaicML Composer, `composer.algorithms.progressive_resizing.resize_batch`.
ResizedBatch resize_batch(const at::Tensor& input, const at::Tensor& target, double scale_factor,
                          Rng& rng, const ResizeOptions& options = {});

/// The same to given sides, each at most the input's.
ResizedBatch resize_batch_to(const at::Tensor& input, const at::Tensor& target, std::int64_t height,
                             std::int64_t width, Rng& rng, const ResizeOptions& options = {});

}  // namespace functional

/// Trains on small images at first, which grow to their full size.
///
/// Source: fast.ai's practice; MosaicML Composer, `composer.algorithms.ProgressiveResizing`.
struct ProgressiveResizing final {
  ResizeMode mode = ResizeMode::resize;
  double initial_scale = 0.5;       ///< of the sides, at first; more than 0, at most 1
  double finetune_fraction = 0.2;   ///< part of the run, at its end, with images of full size
  double delay_fraction = 0.5;      ///< part of the run, at its beginning, with the smallest
  std::int64_t size_increment = 4;  ///< widths are multiples of it, until they are full; >= 1
  bool resize_targets = false;      ///< targets have something for every pixel and go along
  Interpolation interpolation = Interpolation::nearest;  ///< of images, in mode resize
  bool whole_units = false;  ///< grow only when a whole unit of max_duration is done, an epoch of
                             ///< "10ep"; else with every batch
  Key input_key{};           ///< the batch's tensor to make smaller; empty: batch.inputs()
  Key target_key{};          ///< likewise; empty: batch.targets()
  Rng rng{};

  static constexpr std::string_view name = "ProgressiveResizing";
  using events = types<AfterDataloader>;
  static constexpr Rules rules{
      .tags = {id<changes_input_size>},
      .runs_before = {{id<CutOut>, "holes have the size asked for in what the network sees"}},
  };

  /// Networks for images of any size.
  template <class Model>
  static constexpr bool supports = offers<Model, takes_images> && !lists<Model, fixed_input_size>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(initial_scale > 0 && initial_scale <= 1, "ProgressiveResizing: initial_scale",
           initial_scale, "more than 0 and at most 1");
    expect(finetune_fraction >= 0 && finetune_fraction <= 1,
           "ProgressiveResizing: finetune_fraction", finetune_fraction, "a number from 0 to 1");
    expect(delay_fraction >= 0 && delay_fraction + finetune_fraction <= 1,
           "ProgressiveResizing: delay_fraction", delay_fraction,
           "0 or more, and at most 1 together with finetune_fraction");
    expect(size_increment >= 1, "ProgressiveResizing: size_increment", size_increment, "1 or more");
  }

  /// How large sides are, as a part of the full ones, when the part `elapsed` of the run is done.
  [[nodiscard]] constexpr double scale_at(double elapsed) const {
    if (elapsed < delay_fraction) {
      return initial_scale;
    }
    const double growing = 1 - finetune_fraction - delay_fraction;
    const double grown = growing > 0 ? std::min(1.0, (elapsed - delay_fraction) / growing) : 1.0;
    return initial_scale + (1 - initial_scale) * grown;
  }

  /// The width of images of a full width of `width` then: the nearest multiple of size_increment,
  /// the even one of two.
  [[nodiscard]] std::int64_t width_at(double elapsed, std::int64_t width) const;

  /// Replaces the inputs, and the targets where they go along, and logs
  /// `progressive_resizing/height`, `progressive_resizing/width` and
  /// `progressive_resizing/scale_factor`.
  void apply(AfterDataloader, State& state);

  /// Makes images smaller as apply() does after the part frame.elapsed of the run, for a fused
  /// pass; targets stay as they are.
  /// Throws c10::ValueError when the options ask for interpolation between pixels.
  [[nodiscard]] fused::Take pixels(const fused::Frame& frame) {
    expect(mode == ResizeMode::crop || interpolation == Interpolation::nearest,
           "ProgressiveResizing: interpolation", interpolation,
           "nearest, which is what a fused pass can do");
    const std::int64_t width = width_at(frame.elapsed, frame.width);
    const std::int64_t height = frame.height * width / frame.width;
    if (height == frame.height && width == frame.width) {
      return {};
    }
    const detail::Shrink shrink(height, width);
    if (mode == ResizeMode::resize) {
      return {shrink.sources(frame.height, height), shrink.sources(frame.width, width)};
    }
    const auto piece = [&](std::int64_t from, std::int64_t to) {
      detail::Indices kept(static_cast<std::size_t>(to));
      std::iota(kept.begin(), kept.end(), rng.integer(0, from - to + 1));
      return kept;
    };
    detail::Indices rows = piece(frame.height, height);
    return {std::move(rows), piece(frame.width, width)};
  }

  /// The same in a recipe, with what apply() logs; nothing where another tensor than the inputs,
  /// or targets, are made smaller, or pixels are interpolated.
  [[nodiscard]] std::optional<fused::Take> pixels(fused::Frame frame, State& state);

 private:
  void log(const State& state, std::int64_t height, std::int64_t width, double elapsed) const;
};

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
