// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/data/framing.hpp>
#include <tutti/data/random_erasing.hpp>
#include <tutti/fused/normalize.hpp>
#include <tutti/fused/pixels.hpp>

/// What a loader does with images, as stages of a fused pass and policies of a recipe.
namespace tutti::fused {

namespace detail {

// Inputs that are images [N, C, H, W] for the policy `who`.
inline at::Tensor& images_of(State& state, std::string_view who) {
  at::Tensor& x = state.batch.inputs();
  TUTTI_CHECK_VALUE(x.dim() == 4, who, ": the inputs are ", x.sizes(),
                    ", expected images [N, C, H, W]");
  return x;
}

inline Frame frame_of(const at::Tensor& x) {
  return {x.size(0), x.size(1), x.size(2), x.size(3)};
}

}  // namespace detail

/// Exchanges left and right of every image with a probability of its own. Draws one uniform number
/// per image.
struct RandomFlip final {
  double p = 0.5;  ///< in [0, 1]
  Rng rng{};

  static constexpr std::string_view name = "RandomFlip";
  using events = types<AfterDataloader>;
  static constexpr Rules rules{
      .runs_before = {{id<Normalize>, "images are flipped on their way into the batch"}},
      .runs_first = ids<events>,
  };

  /// Throws c10::ValueError when p is out of range.
  constexpr void validate() const {
    expect(p >= 0 && p <= 1, "RandomFlip: p", p, "a number from 0 to 1");
  }

  /// Replaces the inputs, of any type.
  void apply(AfterDataloader, State& state) {
    at::Tensor& x = detail::images_of(state, name);
    const Flips flips = pixels(detail::frame_of(x));
    x = x.clone();
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      if (flips.flipped[static_cast<std::size_t>(i)]) {
        x.select(0, i).copy_(x.select(0, i).flip(-1));
      }
    }
  }

  [[nodiscard]] Flips pixels(const Frame& frame) {
    Flips flips;
    for (std::int64_t i = 0; i < frame.images; ++i) {
      flips.flipped.push_back(rng.uniform() < p);
    }
    return flips;
  }
};

/// A random piece of every image, framed with black first. Draws row, then column, per image.
struct RandomCrop final {
  std::int64_t height = 0;   ///< of the pieces; 0: of the images
  std::int64_t width = 0;    ///< likewise
  std::int64_t padding = 0;  ///< width of the frame, pixels of bytes 0; >= 0
  Rng rng{};

  static constexpr std::string_view name = "RandomCrop";
  using events = types<AfterDataloader>;
  static constexpr Rules rules{
      .runs_before = {{id<Normalize>, "the frame is black before it is normalised"}},
      .runs_first = ids<events>,
  };

  /// Throws c10::ValueError when an option is negative.
  constexpr void validate() const {
    expect(height >= 0, "RandomCrop: height", height, "0 or more");
    expect(width >= 0, "RandomCrop: width", width, "0 or more");
    expect(padding >= 0, "RandomCrop: padding", padding, "0 or more");
  }

  /// Replaces the inputs, of any type; the frame is 0.
  void apply(AfterDataloader, State& state) {
    at::Tensor& x = detail::images_of(state, name);
    const Crops crops = pixels(detail::frame_of(x));
    at::Tensor out = x.new_zeros({x.size(0), x.size(1), crops.height, crops.width})
                         .contiguous(x.suggest_memory_format());
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      const auto& at = crops.corners[static_cast<std::size_t>(i)];
      const auto within = [](std::int64_t first, std::int64_t size, std::int64_t side) {
        const std::int64_t from = std::clamp<std::int64_t>(first, 0, side);
        return std::pair(from, std::clamp<std::int64_t>(first + size, 0, side) - from);
      };
      const auto [top, rows] = within(at.row, crops.height, x.size(2));
      const auto [left, columns] = within(at.column, crops.width, x.size(3));
      if (rows > 0 && columns > 0) {
        out.select(0, i)
            .narrow(1, top - at.row, rows)
            .narrow(2, left - at.column, columns)
            .copy_(x.select(0, i).narrow(1, top, rows).narrow(2, left, columns));
      }
    }
    x = out;
  }

  /// Throws c10::ValueError when the pieces are larger than the framed images.
  [[nodiscard]] Crops pixels(const Frame& frame) {
    Crops crops{.height = height == 0 ? frame.height : height,
                .width = width == 0 ? frame.width : width};
    const std::int64_t rows = frame.height + 2 * padding - crops.height;
    const std::int64_t columns = frame.width + 2 * padding - crops.width;
    TUTTI_CHECK_VALUE(rows >= 0 && columns >= 0, "RandomCrop: pieces of ", crops.height, " x ",
                      crops.width, " do not fit into images of ", frame.height, " x ", frame.width,
                      " with a frame of ", padding, "; take smaller ones or a wider frame");
    for (std::int64_t i = 0; i < frame.images; ++i) {
      const std::int64_t row = rng.integer(0, rows + 1) - padding;
      crops.corners.push_back({row, rng.integer(0, columns + 1) - padding});
    }
    return crops;
  }
};

/// Sets the pixels of a random box of some images to 0. In a recipe it comes behind Normalize, and
/// 0 is the mean colour; in a Pass before Normalize it is black. Draws per image what
/// data::RandomErasing draws.
struct RandomErasing final {
  double p = 0.5;                 ///< in [0, 1]
  data::Range scale{0.02, 0.33};  ///< area of the box, as part of the image's
  data::Range ratio{0.3, 3.3};    ///< height by width of the box; its logarithm is uniform; > 0
  Rng rng{};

  static constexpr std::string_view name = "RandomErasing";
  using events = types<AfterDataloader>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(p >= 0 && p <= 1, "RandomErasing: p", p, "a number from 0 to 1");
    expect(scale.low >= 0 && scale.low <= scale.high && scale.high <= 1,
           "RandomErasing: scale goes from part to part of an image, from 0 to 1, the smaller one "
           "first.");
    expect(ratio.low > 0 && ratio.low <= ratio.high,
           "RandomErasing: ratio is above 0, the smaller one first.");
  }

  /// Replaces the inputs, of any type.
  void apply(AfterDataloader, State& state) {
    at::Tensor& x = detail::images_of(state, name);
    const Holes holes = pixels(detail::frame_of(x));
    x = x.clone();
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      for (const Box& box : holes.of(i)) {
        x.select(0, i)
            .narrow(1, box.top, box.bottom - box.top)
            .narrow(2, box.left, box.right - box.left)
            .zero_();
      }
    }
  }

  [[nodiscard]] Holes pixels(const Frame& frame) {
    Holes holes;
    for (std::int64_t i = 0; i < frame.images; ++i) {
      auto& boxes = holes.boxes.emplace_back();
      if (const auto box = data::draw_erasing(frame.height, frame.width, p, scale, ratio, rng)) {
        boxes.push_back({box->top, box->left, box->top + box->height, box->left + box->width});
      }
    }
    return holes;
  }
};

}  // namespace tutti::fused
