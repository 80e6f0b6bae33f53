// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/framing.hpp>

namespace tutti::data::detail {

inline void expect_ranges(const Range& scale, const Range& ratio, std::string_view what) {
  TUTTI_CHECK_VALUE(scale.low >= 0 && scale.low <= scale.high && scale.high <= 1, what,
                    ": scale is from ", scale.low, " to ", scale.high,
                    ", expected parts of an image, from 0 to 1, the smaller one first");
  TUTTI_CHECK_VALUE(ratio.low > 0 && ratio.low <= ratio.high, what, ": ratio is from ", ratio.low,
                    " to ", ratio.high, ", expected more than 0, the smaller one first");
}

// Rows and columns of a box: its area is that part of the image's, its shape between the ratios,
// whose logarithm is uniform. Either may be 0 or more than the image has.
inline ImageSize draw_box(std::int64_t height, std::int64_t width, const Range& scale,
                          const Range& ratio, Rng& rng) {
  const double area = static_cast<double>(height * width) * rng.uniform(scale.low, scale.high);
  const double shape = std::exp(rng.uniform(std::log(ratio.low), std::log(ratio.high)));
  const auto side = [](double square) {
    return static_cast<std::int64_t>(std::nearbyint(std::sqrt(square)));
  };
  return {side(area / shape), side(area * shape)};
}

}  // namespace tutti::data::detail
