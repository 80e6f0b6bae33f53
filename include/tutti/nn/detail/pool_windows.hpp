// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Where the windows of a pool are, for the loops of both orders.
namespace tutti::nn::detail {

// What max-pooling is asked for.
struct PoolOptions {
  std::array<std::int64_t, 2> kernel{}, stride{}, padding{}, dilation{};
  bool ceil_mode = false;
};

// What a window is along the rows, or along the columns.
struct PoolAxis {
  std::int64_t size = 0, kernel = 0, stride = 1, padding = 0, dilation = 1, windows = 0;
};

// One axis of images of `size` rows or columns; no windows where LibTorch refuses the options.
inline PoolAxis pool_axis(const PoolOptions& options, std::size_t axis, std::int64_t size) {
  PoolAxis out{.size = size,
               .kernel = options.kernel[axis],
               .stride = options.stride[axis],
               .padding = options.padding[axis],
               .dilation = options.dilation[axis]};
  if (out.kernel < 1 || out.stride < 1 || out.dilation < 1 || out.padding < 0 ||
      2 * out.padding > out.kernel) {
    return out;
  }
  const std::int64_t rest = size + 2 * out.padding - out.dilation * (out.kernel - 1) - 1;
  if (rest >= 0) {
    out.windows = (rest + (options.ceil_mode ? out.stride - 1 : 0)) / out.stride + 1;
    if ((out.windows - 1) * out.stride >= size + out.padding) {
      --out.windows;  // would begin in the padding behind the last column
    }
  }
  return out;
}

}  // namespace tutti::nn::detail
