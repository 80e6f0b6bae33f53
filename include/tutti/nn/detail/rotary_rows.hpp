// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>

// The rotation of rotary position embeddings over floats on the CPU, in one pass.
namespace tutti::nn::detail {

// x and y are [batch, length, heads, width] with neighbouring numbers in the last dimension; y is
// dense. cos and sin are [tables, length, half]: one table for all of the batch or one for each.
struct RotaryJob {
  std::int64_t batch = 0, length = 0, heads = 0, width = 0, half = 0;
  std::int64_t batch_stride = 0, length_stride = 0, head_stride = 0;  // of x
  std::int64_t tables = 1;
  float direction = 1;  // -1 turns back, which is the gradient
  const float* x = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  float* y = nullptr;
};

// One head at one position: the halves of the first 2 * half numbers turn, the rest stays.
[[gnu::always_inline]] inline void rotate_head(const RotaryJob& job, const float* x,
                                               const float* cos, const float* sin, float* y) {
  const std::int64_t half = job.half;
  Floats a{}, b{}, c{}, s{};
  std::int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    load(a, x + i);
    load(b, x + half + i);
    load(c, cos + i);
    load(s, sin + i);
    s *= job.direction;
    const Floats first = a * c - b * s;
    const Floats second = b * c + a * s;
    store(y + i, first);
    store(y + half + i, second);
  }
  for (; i < half; ++i) {
    const float sine = sin[i] * job.direction;
    y[i] = x[i] * cos[i] - x[half + i] * sine;
    y[half + i] = x[half + i] * cos[i] + x[i] * sine;
  }
  for (i = 2 * half; i < job.width; ++i) {
    y[i] = x[i];
  }
}

[[gnu::always_inline]] inline void rotate_positions(const RotaryJob& job, std::int64_t begin,
                                                    std::int64_t end) {
  for (std::int64_t at = begin; at < end; ++at) {
    const std::int64_t n = at / job.length;
    const std::int64_t t = at % job.length;
    const std::int64_t table = ((job.tables == 1 ? 0 : n) * job.length + t) * job.half;
    const float* x = job.x + n * job.batch_stride + t * job.length_stride;
    float* y = job.y + at * job.heads * job.width;
    for (std::int64_t head = 0; head < job.heads; ++head) {
      rotate_head(job, x + head * job.head_stride, job.cos + table, job.sin + table,
                  y + head * job.width);
    }
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void rotate_positions_avx2(const RotaryJob& job,
                                                              std::int64_t begin,
                                                              std::int64_t end) {
  rotate_positions(job, begin, end);
}
#endif

inline void rotate_rows(const RotaryJob& job) {
  constexpr std::int64_t numbers = 32768;  // that one thread takes at a time
  const std::int64_t positions = job.batch * job.length;
  const std::int64_t step =
      std::max<std::int64_t>(1, numbers / std::max<std::int64_t>(1, job.heads * job.width));
  ::tutti::detail::parallel_each((positions + step - 1) / step, [&](std::int64_t piece) {
    const std::int64_t begin = piece * step;
    const std::int64_t end = std::min(positions, begin + step);
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      rotate_positions_avx2(job, begin, end);
      return;
    }
#endif
    rotate_positions(job, begin, end);
  });
}

}  // namespace tutti::nn::detail
