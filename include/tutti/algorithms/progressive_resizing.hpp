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
#include <tutti/algorithms/detail/pixel_grid.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>

// The geometry of making images smaller.

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
/// crop draws top, then left of one piece for all images. Input [N, C, L] or [N, C, D, H, W] may be
/// scaled to the nearest, and with it targets of three dimensions or more: of floating ones all but
/// the first two, of others all but the first.
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
#include <tutti/algorithms/progressive_resizing.inl.hpp>
#endif
