// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/detail/cpu.hpp>
#include <tutti/nn/detail/batch_norm_job.hpp>
#include <tutti/nn/detail/floats.hpp>

// Batch normalisation in training over floats on the CPU whose channels are planes ([N, C, H, W] in
// order): ATen's loops take three to five times as long there. Its backward pass is as fast as its
// memory and is used as it is.
namespace tutti::nn::detail {

// The sum of x - shift over n numbers, or that of their squares.
template <bool Square>
[[gnu::always_inline]] inline double sum(const float* x, std::int64_t n, float shift) {
  double out = 0;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t end = std::min(begin + block, n);
    Floats even{};
    Floats odd{};
    Floats v;
    std::int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      load(v, x + i);
      v -= shift;
      even += Square ? v * v : v;
      load(v, x + i + lanes);
      v -= shift;
      odd += Square ? v * v : v;
    }
    even += odd;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      out += static_cast<double>(even[lane]);
    }
    for (; i < end; ++i) {
      const float last = x[i] - shift;
      out += static_cast<double>(Square ? last * last : last);
    }
  }
  return out;
}

// y = scale * x + shift
[[gnu::always_inline]] inline void affine(const float* x, float* y, std::int64_t n, float scale,
                                          float shift) {
  Floats v;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    load(v, x + i);
    v = v * scale + shift;
    store(y + i, v);
  }
  for (; i < n; ++i) {
    y[i] = x[i] * scale + shift;
  }
}

[[gnu::always_inline]] inline void normalize(const BatchNormJob& job, std::int64_t channel) {
  const std::int64_t step = job.channels * job.pixels;
  const std::int64_t begin = channel * job.pixels;
  double total = 0;
  for (std::int64_t n = 0; n < job.images; ++n) {
    total += sum<false>(job.x + n * step + begin, job.pixels, 0);
  }
  const double mean = total / static_cast<double>(job.images * job.pixels);
  double squares = 0;
  for (std::int64_t n = 0; n < job.images; ++n) {
    squares += sum<true>(job.x + n * step + begin, job.pixels, static_cast<float>(mean));
  }
  const Affine line = settle(job, channel, mean, squares);
  for (std::int64_t n = 0; n < job.images; ++n) {
    const std::int64_t at = n * step + begin;
    affine(job.x + at, job.y + at, job.pixels, line.scale, line.shift);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void normalize_avx2(const BatchNormJob& job,
                                                       std::int64_t channel) {
  normalize(job, channel);
}
#endif

inline void normalize_channel(const BatchNormJob& job, std::int64_t channel) {
#if defined(__x86_64__)
  if (::tutti::detail::has_avx2()) {
    normalize_avx2(job, channel);
    return;
  }
#endif
  normalize(job, channel);
}

}  // namespace tutti::nn::detail
