// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

/// What bytes of one channel become.
namespace tutti::fused::detail {

/// A number in two parts, so that `fma(x, high, x * low)` is x times it, correctly rounded but for
/// rare x.
struct Split {
  explicit Split(double value = 1)
      : high(static_cast<float>(value)),
        low(static_cast<float>(value - static_cast<double>(high))) {}
  float high;
  float low;
};

/// The values of a channel's bytes, and the numbers that they are computed from. The tables are
/// what counts: arithmetic is used where it gives the same for all 256.
struct Values {
  Values(float divisor, float average, float std, double part)
      : mean(average),
        unit(1 / static_cast<double>(divisor)),
        inverse(1 / static_cast<double>(std)),
        keep(static_cast<float>(1 - part)),
        mixing(static_cast<float>(part)) {
    for (std::size_t byte = 0; byte < plain.size(); ++byte) {
      plain[byte] = (static_cast<float>(byte) / divisor - mean) / std;
    }
    for (std::size_t byte = 0; byte < plain.size(); ++byte) {
      own[byte] = keep * plain[byte];
      partner[byte] = mixing * plain[byte];
    }
  }

  float mean;
  Split unit;     // 1 / divisor
  Split inverse;  // 1 / std
  float keep;     // 1 - mixing
  float mixing;
  std::array<float, 256> plain;    // v
  std::array<float, 256> own;      // (1 - mixing) * v
  std::array<float, 256> partner;  // mixing * v
};

inline void look_up(const std::uint8_t* bytes, float* out, std::int64_t n, const Values& values) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = values.plain[bytes[i]];
  }
}

// The products come from tables, so that no compiler can contract them with the sum.
inline void look_up_mixed(const std::uint8_t* bytes, const std::uint8_t* partners, float* out,
                          std::int64_t n, const Values& values) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = values.own[bytes[i]] + values.partner[partners[i]];
  }
}

}  // namespace tutti::fused::detail
