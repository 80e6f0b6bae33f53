// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>

/// CutOut: training on images with holes.
namespace tutti {

namespace functional {

/// How cutout_batch cuts.
struct CutOutOptions {
  std::int64_t num_holes = 1;     ///< per image; >= 0
  double length = 0.5;            ///< side of a hole as a part of the shorter side; in (0, 1)
  bool uniform_sampling = false;  ///< centres also outside, to cover all pixels alike
  bool per_image = false;         ///< every image has holes of its own; else all have the same
};

}  // namespace functional

namespace detail {

// Where one square hole of an image of that size is. Draws row, then column.
inline fused::Box draw_hole(Rng& rng, std::int64_t height, std::int64_t width, std::int64_t side,
                            bool uniform_sampling) {
  const std::int64_t reach = side / 2;
  const auto centre = [&](std::int64_t size) {
    return uniform_sampling ? rng.integer(-((side + 1) / 2), size + reach) : rng.integer(0, size);
  };
  const std::int64_t row = centre(height);
  const std::int64_t column = centre(width);
  const auto within = [](std::int64_t at, std::int64_t size) {
    return std::clamp<std::int64_t>(at, 0, size);
  };
  return {within(row - reach, height), within(column - reach, width), within(row + reach, height),
          within(column + reach, width)};
}

inline std::int64_t hole_side(double length, std::int64_t height, std::int64_t width) {
  return static_cast<std::int64_t>(length * static_cast<double>(std::min(height, width)));
}

// Sets one square hole to 0, at the same place in all of x [..., H, W].
void cut_hole(const at::Tensor& x, Rng& rng, std::int64_t side, bool uniform_sampling);

}  // namespace detail

namespace functional {

/// Cuts square holes out of images: their pixels become 0.
///
/// x: [..., H, W], of any type; with per_image [N, ..., H, W]. A hole reaches half of its side,
/// rounded down twice to whole pixels, to either side of a centre anywhere in the image, and is cut
/// off at the edges; holes may overlap. Draws row, then column of each centre.
/// Returns x's shape, type and memory format; x itself without holes. x is left alone.
/// Throws c10::Error (ValueError) when x is no image or an option is out of range.
/// Source: DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with
/// Cutout", 2017; MosaicML Composer, `composer.algorithms.cutout.cutout_batch`.
at::Tensor cutout_batch(const at::Tensor& x, Rng& rng, const CutOutOptions& options = {});

}  // namespace functional

/// Trains on images of which square holes are set to 0, the mean of normalised pixels.
///
/// Source: DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with
/// Cutout", 2017.
struct CutOut final {
  std::int64_t num_holes = 1;     ///< per image; >= 0
  double length = 0.5;            ///< side of a hole as a part of the shorter side; in (0, 1)
  bool uniform_sampling = false;  ///< centres also outside, to cover all pixels alike
  bool per_image = false;         ///< every image has holes of its own; else all of a batch share
                                  ///< them
  Key input_key{};                ///< the batch's tensor to cut; empty: batch.inputs()
  Rng rng{};

  static constexpr std::string_view name = "CutOut";
  using events = types<AfterDataloader>;

  template <class Model>
  static constexpr bool supports = offers<Model, takes_images>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(num_holes >= 0, "CutOut: num_holes", num_holes, "0 or more");
    expect(length > 0 && length < 1, "CutOut: length", length, "more than 0 and less than 1");
  }

  /// Replaces the inputs.
  void apply(AfterDataloader, State& state);

  /// Draws as apply() does, for a fused pass.
  [[nodiscard]] fused::Holes pixels(const fused::Frame& frame) {
    fused::Holes holes;
    const bool none = frame.images * frame.channels * frame.height * frame.width == 0;
    const std::int64_t side = detail::hole_side(length, frame.height, frame.width);
    holes.boxes.resize(per_image ? static_cast<std::size_t>(frame.images) : 1);
    for (auto& boxes : holes.boxes) {
      for (std::int64_t hole = 0; hole < num_holes && !none; ++hole) {
        boxes.push_back(detail::draw_hole(rng, frame.height, frame.width, side, uniform_sampling));
      }
    }
    return holes;
  }

  /// The same in a recipe; nothing where another tensor than the inputs is cut.
  [[nodiscard]] std::optional<fused::Holes> pixels(const fused::Frame& frame, State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/cutout.inl.hpp>
#endif
