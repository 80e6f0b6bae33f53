#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/core/rng.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>

/// The stages of a fused pass that are no algorithms: what a loader does with images.
namespace tutti::fused {

/// Bytes become floats from 0 to 1, less the mean, divided by the standard deviation: what
/// ImageLoader does.
struct Normalize final {
  std::vector<double> mean{};  ///< of the channels, of values from 0 to 1; empty: 0
  std::vector<double> std{};   ///< likewise; > 0; empty: 1
  double divisor = 255;        ///< what bytes are divided by first; 1 leaves them 0 to 255; > 0

  static constexpr std::string_view name = "Normalize";

  /// Throws c10::ValueError when a value of std, or divisor, is not above 0.
  void validate() const {
    expect(divisor > 0, "Normalize: divisor", divisor, "more than 0");
    for (const double value : std) {
      expect(value > 0, "Normalize: a value of std", value, "more than 0");
    }
  }

  /// Throws c10::ValueError when mean or std has not one value for each channel.
  [[nodiscard]] Scale pixels(const Frame& frame) const {
    const auto fits = [&](const std::vector<double>& values) {
      return values.empty() || std::ssize(values) == frame.channels;
    };
    TORCH_CHECK_VALUE(fits(mean) && fits(std), "Normalize: mean has ", mean.size(),
                      " values and std ", std.size(), ", expected none or one for each of ",
                      frame.channels, " channels");
    return {.divisor = divisor, .mean = mean, .std = std};
  }
};

/// Exchanges left and right of every image with a probability of its own. Draws one uniform number
/// per image.
struct RandomFlip final {
  double p = 0.5;  ///< in [0, 1]
  Rng rng{};

  static constexpr std::string_view name = "RandomFlip";

  /// Throws c10::ValueError when p is out of range.
  constexpr void validate() const {
    expect(p >= 0 && p <= 1, "RandomFlip: p", p, "a number from 0 to 1");
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

  /// Throws c10::ValueError when an option is negative.
  constexpr void validate() const {
    expect(height >= 0, "RandomCrop: height", height, "0 or more");
    expect(width >= 0, "RandomCrop: width", width, "0 or more");
    expect(padding >= 0, "RandomCrop: padding", padding, "0 or more");
  }

  /// Throws c10::ValueError when the pieces are larger than the framed images.
  [[nodiscard]] Crops pixels(const Frame& frame) {
    Crops crops{.height = height == 0 ? frame.height : height,
                .width = width == 0 ? frame.width : width};
    const std::int64_t rows = frame.height + 2 * padding - crops.height;
    const std::int64_t columns = frame.width + 2 * padding - crops.width;
    TORCH_CHECK_VALUE(rows >= 0 && columns >= 0, "RandomCrop: pieces of ", crops.height, " x ",
                      crops.width, " do not fit into images of ", frame.height, " x ", frame.width,
                      " with a frame of ", padding, "; take smaller ones or a wider frame");
    for (std::int64_t i = 0; i < frame.images; ++i) {
      const std::int64_t row = rng.integer(0, rows + 1) - padding;
      crops.corners.push_back({row, rng.integer(0, columns + 1) - padding});
    }
    return crops;
  }
};

}  // namespace tutti::fused
