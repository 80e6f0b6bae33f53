// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/detail/pool_windows.hpp>

// Max-pooling over floats on the CPU whose channels lie next to each other, and its gradient, eight
// channels at a time. ATen's loops go through memory for each number of a window, and take each
// number of a gradient on its own. What comes out is the same, bit by bit.
namespace tutti::nn::detail {

// Numbers along an axis: first, first + step, ... below end.
struct Span {
  std::int64_t first = 0, end = 0;
};

// What window `window` sees of the axis, but for padding, in steps of the dilation.
Span seen_by(const PoolAxis& axis, std::int64_t window);

// The windows that reach over `place`, each, though a dilated one may not see it.
Span windows_over(const PoolAxis& axis, std::int64_t place);

struct PixelPoolJob {
  PoolAxis rows, columns;
  std::int64_t channels = 0;  // at least `lanes`
  std::vector<Span> over{};   // windows_over each column
  const float* x = nullptr;
  float* y = nullptr;
  std::int32_t* indices = nullptr;  // in the plane, of the largest of each window; null: unwanted
  const float* dy = nullptr;        // for a gradient, these in place of the three above
  const std::int32_t* winners = nullptr;  // the indices
  float* dx = nullptr;
};

// n * lanes channels of one window; image and y: of the first of them.
template <std::int64_t n>
[[gnu::always_inline]] inline void pool_channels(const PixelPoolJob& job, const float* image,
                                                 Span rows, Span columns, float* y,
                                                 std::int32_t* indices) {
  const std::int64_t width = job.columns.size;
  Floats best[static_cast<std::size_t>(n)];
  Lanes at[static_cast<std::size_t>(n)] =
      {};  // GCC 14 takes an assignment below, instead of a sum, for a read of nothing
  Floats v;
  for (std::int64_t i = 0; i < n; ++i) {
    best[i] = Floats{} - std::numeric_limits<float>::infinity();
    at[i] += static_cast<std::int32_t>(rows.first * width + columns.first);
  }
  for (std::int64_t row = rows.first; row < rows.end; row += job.rows.dilation) {
    for (std::int64_t column = columns.first; column < columns.end;
         column += job.columns.dilation) {
      const std::int64_t pixel = row * width + column;
      const Lanes here = Lanes{} + static_cast<std::int32_t>(pixel);
      for (std::int64_t i = 0; i < n; ++i) {
        load(v, image + pixel * job.channels + i * lanes);
        const Lanes stays = ~(v > best[i]) & (v == v);  // as in ATen: the first of equals, or NaN
        best[i] = stays ? best[i] : v;
        at[i] = stays ? at[i] : here;
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    store(y + i * lanes, best[i]);
    if (indices != nullptr) {
      store(indices + i * lanes, at[i]);
    }
  }
}

// n * lanes channels of one pixel's gradient; dy, winners and dx: of the first of them, in the
// first window, there, and here.
template <std::int64_t n>
[[gnu::always_inline]] inline void spread_channels(const PixelPoolJob& job, const float* dy,
                                                   const std::int32_t* winners, Span rows,
                                                   Span columns, std::int64_t pixel, float* dx) {
  const Lanes here = Lanes{} + static_cast<std::int32_t>(pixel);
  Floats sum[static_cast<std::size_t>(n)];
  Floats v;
  Lanes at;
  for (std::int64_t i = 0; i < n; ++i) {
    sum[i] = Floats{};
  }
  for (std::int64_t row = rows.first; row < rows.end; ++row) {
    for (std::int64_t column = columns.first; column < columns.end; ++column) {
      const std::int64_t window = (row * job.columns.windows + column) * job.channels;
      for (std::int64_t i = 0; i < n; ++i) {
        load(v, dy + window + i * lanes);
        load(at, winners + window + i * lanes);
        sum[i] += at == here ? v : Floats{};
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    store(dx + i * lanes, sum[i]);
  }
}

// All windows in a row of windows of one image; `row` counts through all images.
[[gnu::always_inline]] inline void pool_windows(const PixelPoolJob& job, std::int64_t row) {
  const std::int64_t channels = job.channels;
  const std::int64_t image = row / job.rows.windows;
  const float* const x = job.x + image * job.rows.size * job.columns.size * channels;
  const Span rows = seen_by(job.rows, row % job.rows.windows);
  for (std::int64_t window = 0; window < job.columns.windows; ++window) {
    const Span columns = seen_by(job.columns, window);
    const std::int64_t to = (row * job.columns.windows + window) * channels;
    const auto indices = [&](std::int64_t i) {
      return job.indices == nullptr ? nullptr : job.indices + to + i;
    };
    std::int64_t i = 0;
    for (; i + 4 * lanes <= channels; i += 4 * lanes) {
      pool_channels<4>(job, x + i, rows, columns, job.y + to + i, indices(i));
    }
    for (; i < channels; i += lanes) {
      const std::int64_t last = std::min(i, channels - lanes);  // some channels twice, if need be
      pool_channels<1>(job, x + last, rows, columns, job.y + to + last, indices(last));
    }
  }
}

// The gradient of one row of one image; `row` counts through all images.
[[gnu::always_inline]] inline void spread_row(const PixelPoolJob& job, std::int64_t row) {
  const std::int64_t channels = job.channels;
  const std::int64_t width = job.columns.size;
  const std::int64_t top = row % job.rows.size;
  const Span rows = windows_over(job.rows, top);
  const std::int64_t image =
      row / job.rows.size * job.rows.windows * job.columns.windows * channels;
  const float* const dy = job.dy + image;
  const std::int32_t* const winners = job.winners + image;
  for (std::int64_t column = 0; column < width; ++column) {
    const Span columns = job.over[static_cast<std::size_t>(column)];
    const std::int64_t pixel = top * width + column;
    float* const dx = job.dx + (row * width + column) * channels;
    std::int64_t i = 0;
    for (; i + 4 * lanes <= channels; i += 4 * lanes) {
      spread_channels<4>(job, dy + i, winners + i, rows, columns, pixel, dx + i);
    }
    for (; i < channels; i += lanes) {
      const std::int64_t last = std::min(i, channels - lanes);
      spread_channels<1>(job, dy + last, winners + last, rows, columns, pixel, dx + last);
    }
  }
}

// Rows [begin, end) of windows, or of the gradient where one is asked for.
[[gnu::always_inline]] inline void pool_rows(const PixelPoolJob& job, std::int64_t begin,
                                             std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (job.dx == nullptr) {
      pool_windows(job, row);
    } else {
      spread_row(job, row);
    }
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void pool_rows_avx2(const PixelPoolJob& job, std::int64_t begin,
                                                       std::int64_t end) {
  pool_rows(job, begin, end);
}
#endif

// Does the job for `images` images.
void pool_pixels(const PixelPoolJob& job, std::int64_t images);

PixelPoolJob pixel_pool_job(const PoolOptions& options, std::int64_t channels, std::int64_t height,
                            std::int64_t width);

}  // namespace tutti::nn::detail

#if TUTTI_BODIES

namespace tutti::nn::detail {

TUTTI_INLINE Span seen_by(const PoolAxis& axis, std::int64_t window) {
  const std::int64_t left = window * axis.stride - axis.padding;
  const std::int64_t outside =
      left < 0 ? (axis.dilation - 1 - left) / axis.dilation * axis.dilation : 0;
  return {.first = left + outside,
          .end = std::min(left + (axis.kernel - 1) * axis.dilation + 1, axis.size)};
}

TUTTI_INLINE Span windows_over(const PoolAxis& axis, std::int64_t place) {
  const std::int64_t last = place + axis.padding;
  const std::int64_t early = last - (axis.kernel - 1) * axis.dilation;
  return {.first = early > 0 ? (early + axis.stride - 1) / axis.stride : 0,
          .end = std::min(last / axis.stride + 1, axis.windows)};
}

TUTTI_INLINE void pool_pixels(const PixelPoolJob& job, std::int64_t images) {
  const std::int64_t rows = images * (job.dx == nullptr ? job.rows.windows : job.rows.size);
  const std::int64_t piece =
      std::max<std::int64_t>(1, (1 << 16) / (job.columns.size * job.channels));
  ::tutti::detail::parallel_each((rows + piece - 1) / piece, [&](std::int64_t i) {
    const std::int64_t end = std::min((i + 1) * piece, rows);
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      pool_rows_avx2(job, i * piece, end);
      return;
    }
#endif
    pool_rows(job, i * piece, end);
  });
}

TUTTI_INLINE PixelPoolJob pixel_pool_job(const PoolOptions& options, std::int64_t channels,
                                         std::int64_t height, std::int64_t width) {
  PixelPoolJob job{.rows = pool_axis(options, 0, height),
                   .columns = pool_axis(options, 1, width),
                   .channels = channels};
  for (std::int64_t column = 0; column < width; ++column) {
    job.over.push_back(windows_over(job.columns, column));
  }
  return job;
}

}  // namespace tutti::nn::detail

#endif
