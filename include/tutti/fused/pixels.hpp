// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

/// What a stage of a fused pass does to one pixel.
///
/// A stage is any type with a member `pixels(const Frame&)` that draws what it needs and returns
/// one of the pixel expressions below; MixUp, CutMix, CutOut, ColOut and ProgressiveResizing have
/// it. `formula` is the value at image n, channel c, row i, column j, from x, what the stages
/// before give. A pixel expression without values, as its type's default is, changes nothing.
namespace tutti::fused {

/// The batch as a stage finds it.
struct Frame {
  std::int64_t images = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  double elapsed = 0;  ///< part of the run that is done, in [0, 1]
};

/// A box of pixels: rows [top, bottom), columns [left, right).
struct Box {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t bottom = 0;
  std::int64_t right = 0;

  /// Pixels inside.
  [[nodiscard]] constexpr std::int64_t area() const { return (bottom - top) * (right - left); }
  friend constexpr bool operator==(const Box&, const Box&) = default;
};

/// Rows and columns by index, in ascending order: a smaller image.
struct Take {
  std::vector<std::int64_t> rows{};     ///< empty: all
  std::vector<std::int64_t> columns{};  ///< empty: all

  static constexpr std::string_view formula = "x(n, c, rows[i], columns[j])";

  /// Where that box of the larger image comes to lie in the smaller one.
  [[nodiscard]] Box operator()(const Box& box) const {
    const auto along = [](const std::vector<std::int64_t>& kept, std::int64_t at) {
      return kept.empty() ? at : std::lower_bound(kept.begin(), kept.end(), at) - kept.begin();
    };
    return {along(rows, box.top), along(columns, box.left), along(rows, box.bottom),
            along(columns, box.right)};
  }
};

/// Bytes become floats: each step is rounded on its own, as `x.to(kFloat).div(255).sub(mean)
/// .div(std)` does.
struct Scale {
  double divisor = 255;
  std::vector<double> mean{};  ///< a value per channel; empty: 0
  std::vector<double> std{};   ///< a value per channel; empty: 1

  static constexpr std::string_view formula = "(float(x(n, c, i, j)) / divisor - mean[c]) / std[c]";
};

/// A window of each image, of one size. Where it reaches out of the image there are zero bytes.
struct Crops {
  struct Corner {
    std::int64_t row = 0;
    std::int64_t column = 0;
  };
  std::int64_t height = 0;  ///< 0: the whole of each image
  std::int64_t width = 0;
  std::vector<Corner> corners{};  ///< by image; negative to the left of it or above

  static constexpr std::string_view formula = "x(n, c, row[n] + i, column[n] + j)";
};

/// Some images with left and right exchanged.
struct Flips {
  std::vector<bool> flipped{};  ///< by image; empty: none

  static constexpr std::string_view formula = "x(n, c, i, flipped[n] ? width - 1 - j : j)";
};

/// Pixels set to 0.
struct Holes {
  std::vector<std::vector<Box>> boxes{};  ///< by image; one entry: the same for all; empty: none

  static constexpr std::string_view formula = "in_hole(n, i, j) ? 0 : x(n, c, i, j)";

  [[nodiscard]] std::span<const Box> of(std::int64_t image) const {
    return boxes.empty() ? std::span<const Box>{}
                         : boxes[boxes.size() == 1 ? 0 : static_cast<std::size_t>(image)];
  }
};

/// Each image blended with another one of the batch.
struct Mix {
  at::Tensor indices{};  ///< which one: int64 [N], on the CPU; undefined: nothing is blended
  double mixing = 0;     ///< its weight, in [0, 1]; with 0 nothing is blended

  static constexpr std::string_view formula =
      "(1 - mixing) * x(n, c, i, j) + mixing * x(indices[n], c, i, j)";
};

/// A box of another image of the batch.
struct Paste {
  at::Tensor indices{};  ///< of which one: int64 [N], on the CPU; undefined: nothing is pasted
  Box box{};             ///< within the image
  double kept = 1;       ///< weight of an image's own target

  static constexpr std::string_view formula = "x(in_box(i, j) ? indices[n] : n, c, i, j)";
};

/// `T` is one of the pixel expressions above.
template <class T>
concept PixelExpression = std::same_as<T, Take> || std::same_as<T, Scale> ||
                          std::same_as<T, Crops> || std::same_as<T, Flips> ||
                          std::same_as<T, Holes> || std::same_as<T, Mix> || std::same_as<T, Paste>;

/// `S` can be a stage of a fused pass: `stage.pixels(frame)` is a pixel expression, and `S::name`
/// its name.
template <class S>
concept Fusible = requires(S& stage, const Frame& frame, std::string_view& name) {
  { stage.pixels(frame) } -> PixelExpression;
  name = S::name;
};

/// What a stage does to a pixel.
template <Fusible S>
using PixelsOf = decltype(std::declval<S&>().pixels(std::declval<const Frame&>()));

/// The batch after a stage.
template <PixelExpression Node>
[[nodiscard]] Frame after(Frame frame, const Node& node) {
  if constexpr (std::is_same_v<Node, Crops>) {
    frame.height = node.height == 0 ? frame.height : node.height;
    frame.width = node.height == 0 ? frame.width : node.width;
  } else if constexpr (std::is_same_v<Node, Take>) {
    frame.height = node.rows.empty() ? frame.height : std::ssize(node.rows);
    frame.width = node.columns.empty() ? frame.width : std::ssize(node.columns);
  }
  return frame;
}

}  // namespace tutti::fused
