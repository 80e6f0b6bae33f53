// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

namespace tutti {

/// What becomes of a loss per position: kept, averaged or summed up.
enum class Reduction : std::uint8_t { none, mean, sum };

/// "none", "mean", "sum".
constexpr std::string_view to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return "none";
    case Reduction::mean:
      return "mean";
    case Reduction::sum:
      return "sum";
  }
  return "unknown";
}

namespace detail {

constexpr std::int64_t to_aten(Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return at::Reduction::None;
    case Reduction::mean:
      return at::Reduction::Mean;
    case Reduction::sum:
      return at::Reduction::Sum;
  }
  return at::Reduction::Mean;
}

inline at::Tensor reduce(const at::Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return losses;
    case Reduction::mean:
      return losses.mean();
    case Reduction::sum:
      return losses.sum();
  }
  return losses;
}

}  // namespace detail
}  // namespace tutti
