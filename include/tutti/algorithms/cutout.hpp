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

namespace tutti::detail {

TUTTI_INLINE void cut_hole(const at::Tensor& x, Rng& rng, std::int64_t side,
                           bool uniform_sampling) {
  const fused::Box hole = draw_hole(rng, x.size(-2), x.size(-1), side, uniform_sampling);
  x.slice(-2, hole.top, hole.bottom).slice(-1, hole.left, hole.right).zero_();
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor cutout_batch(const at::Tensor& x, Rng& rng, const CutOutOptions& options) {
  const std::int64_t least = options.per_image ? 3 : 2;
  TUTTI_CHECK_VALUE(x.dim() >= least, "cutout_batch: the input is ", x.sizes(),
                    ", expected images ", options.per_image ? "[N, ..., H, W]" : "[..., H, W]");
  TUTTI_CHECK_VALUE(options.num_holes >= 0, "cutout_batch: num_holes is ", options.num_holes,
                    ", expected 0 or more");
  TUTTI_CHECK_VALUE(options.length > 0 && options.length < 1, "cutout_batch: length is ",
                    options.length, ", expected more than 0 and less than 1");
  const std::int64_t side = ::tutti::detail::hole_side(options.length, x.size(-2), x.size(-1));
  if (options.num_holes == 0 || x.numel() == 0) {
    return x;
  }
  at::Tensor out = x.clone();
  const std::int64_t images = options.per_image ? x.size(0) : 1;
  for (std::int64_t i = 0; i < images; ++i) {
    const at::Tensor image = options.per_image ? out.select(0, i) : out;
    for (std::int64_t hole = 0; hole < options.num_holes; ++hole) {
      ::tutti::detail::cut_hole(image, rng, side, options.uniform_sampling);
    }
  }
  return out;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void CutOut::apply(AfterDataloader, State& state) {
  at::Tensor& x = detail::images_of(state.batch, input_key, name);
  x = functional::cutout_batch(x, rng,
                               {.num_holes = num_holes,
                                .length = length,
                                .uniform_sampling = uniform_sampling,
                                .per_image = per_image});
}

TUTTI_INLINE std::optional<fused::Holes> CutOut::pixels(const fused::Frame& frame, State& state) {
  if (!detail::means_inputs(state.batch, input_key)) {
    return std::nullopt;
  }
  return pixels(frame);
}

}  // namespace tutti

#endif
