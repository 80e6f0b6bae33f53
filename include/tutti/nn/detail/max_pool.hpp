// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/detail/gradient.hpp>
#include <tutti/nn/detail/max_pool_channels_last.hpp>
#include <tutti/nn/detail/pool_windows.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

// Max-pooling over floats on the CPU in [N, C, H, W] order, where ATen visits the numbers of each
// window one by one: here eight windows of a row go together. Values and indices are the same.
namespace tutti::nn::detail {

struct PoolJob {
  PoolAxis rows, columns;
  const float* x = nullptr;
  float* y = nullptr;
  std::int64_t* indices = nullptr;  // in the plane, of the largest of each window

  // A row of a plane is kept as `stride` phases, each every stride-th column of the padded row, so
  // that what neighbouring windows want of it are neighbours.
  std::int64_t phase = 0;              // numbers of one
  std::vector<std::int64_t> taps{};    // where the columns of the first window are
  std::vector<std::int32_t> lefts{};   // the first column of each window, padding counted
  std::vector<std::int32_t> starts{};  // the first that is no padding
  [[nodiscard]] std::int64_t line() const { return columns.stride * phase; }
};

// Deals the columns of one row to phases. What is no column stays as it was.
[[gnu::always_inline]] inline void deal(const PoolJob& job, const float* row, float* phases) {
  const std::int64_t stride = job.columns.stride;
  const std::int64_t padding = job.columns.padding;
  const std::int64_t used = std::min(job.columns.size, job.line() - padding);
  std::int64_t i = 0;
  if (stride == 1) {
    std::copy_n(row, used, phases + padding);
    return;
  }
  if (stride == 2) {
    float* even = phases + padding % 2 * job.phase + padding / 2;
    float* odd = phases + (padding + 1) % 2 * job.phase + (padding + 1) / 2;
    Floats a;
    Floats b;
    for (; i + 2 * lanes <= used; i += 2 * lanes, even += lanes, odd += lanes) {
      load(a, row + i);
      load(b, row + i + lanes);
      store(even, __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14));
      store(odd, __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15));
    }
  }
  for (; i < used; ++i) {
    phases[(i + padding) % stride * job.phase + (i + padding) / stride] = row[i];
  }
}

// The windows whose first row in the plane is `top`, which may be above it.
[[gnu::always_inline]] inline void pool_row(const PoolJob& job, const float* plane,
                                            std::int64_t top, float* y, std::int64_t* indices) {
  using Longs = std::int64_t __attribute__((vector_size(64)));
  const PoolAxis& rows = job.rows;
  const std::int64_t above = top < 0 ? (rows.dilation - 1 - top) / rows.dilation : 0;
  const std::int64_t first = top + above * rows.dilation;
  for (std::int64_t begin = 0; begin < job.columns.windows; begin += lanes) {
    Lanes left;
    Lanes at;
    load(left, job.lefts.data() + begin);
    load(at, job.starts.data() + begin);
    at += static_cast<std::int32_t>(first * job.columns.size);
    Floats best = Floats{} - std::numeric_limits<float>::infinity();
    Floats v;
    std::int64_t row = first;
    for (std::int64_t i = above; i < rows.kernel && row < rows.size; ++i, row += rows.dilation) {
      const float* const from = plane + row * job.line() + begin;
      Lanes here = left + static_cast<std::int32_t>(row * job.columns.size);
      for (const std::int64_t tap : job.taps) {
        load(v, from + tap);
        const Lanes larger = (v > best) | (v != v);  // as in ATen: the first of equals, or NaN
        best = larger ? v : best;
        at = larger ? here : at;
        here += static_cast<std::int32_t>(job.columns.dilation);
      }
    }
    if (begin + lanes <= job.columns.windows) {
      store(y + begin, best);
      const Longs wide = __builtin_convertvector(at, Longs);
      store(indices + begin, wide);
    } else {
      for (std::int64_t i = begin; i < job.columns.windows; ++i) {
        y[i] = best[i - begin];
        indices[i] = at[i - begin];
      }
    }
  }
}

// One plane; phases: room for all its rows, the smallest number wherever there is no column.
[[gnu::always_inline]] inline void pool_plane(const PoolJob& job, std::int64_t plane,
                                              float* phases) {
  const float* const x = job.x + plane * job.rows.size * job.columns.size;
  for (std::int64_t row = 0; row < job.rows.size; ++row) {
    deal(job, x + row * job.columns.size, phases + row * job.line());
  }
  for (std::int64_t window = 0; window < job.rows.windows; ++window) {
    const std::int64_t at = (plane * job.rows.windows + window) * job.columns.windows;
    pool_row(job, phases, window * job.rows.stride - job.rows.padding, job.y + at,
             job.indices + at);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void pool_plane_avx2(const PoolJob& job, std::int64_t plane,
                                                        float* phases) {
  pool_plane(job, plane, phases);
}
#endif

void pool_planes(const PoolJob& job, std::int64_t begin, std::int64_t end);

// What pool_planes needs to know of images of height x width; no windows where it is LibTorch's.
PoolJob pool_job(const PoolOptions& options, std::int64_t height, std::int64_t width);

}  // namespace tutti::nn::detail

// Max-pooling by the library's own loops, where they are at home.
namespace tutti::nn::detail {

// The pooled images and the indices of the largest numbers in their planes.
struct Pooled {
  at::Tensor y, indices;
};

class MaxPoolBackward final : public torch::autograd::Node {
 public:
  MaxPoolBackward(const at::Tensor& x, at::Tensor indices, const PoolOptions& options)
      : x_(x, /*is_output=*/false), indices_(std::move(indices)), options_(options) {
    add_next_edge(torch::autograd::impl::gradient_edge(x));
  }

  void release_variables() override { x_.reset_data(); }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  torch::autograd::SavedVariable x_;
  at::Tensor indices_;
  PoolOptions options_;
};

// Images whose channels lie next to each other; undefined where LibTorch has to do it.
Pooled pool_pixels(const at::Tensor& x, const PoolOptions& options, bool with_indices);

// Images whose channels are planes, or with one channel; undefined where LibTorch has to do it.
Pooled pool_planes(const at::Tensor& x, const PoolOptions& options);

// The pooled images, [N, C, H', W'], or an undefined tensor where LibTorch has to do it.
at::Tensor host_max_pool(const at::Tensor& x, const PoolOptions& options);

}  // namespace tutti::nn::detail

#if TUTTI_BODIES
namespace tutti::nn::detail {

TUTTI_INLINE void pool_planes(const PoolJob& job, std::int64_t begin, std::int64_t end) {
  std::vector<float> phases(static_cast<std::size_t>(job.rows.size * job.line()),
                            -std::numeric_limits<float>::infinity());
  for (std::int64_t plane = begin; plane < end; ++plane) {
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      pool_plane_avx2(job, plane, phases.data());
      continue;
    }
#endif
    pool_plane(job, plane, phases.data());
  }
}

TUTTI_INLINE PoolJob pool_job(const PoolOptions& options, std::int64_t height, std::int64_t width) {
  PoolJob job{.rows = pool_axis(options, 0, height), .columns = pool_axis(options, 1, width)};
  const PoolAxis& columns = job.columns;
  if (job.rows.windows < 1 || columns.windows < 1) {
    return job;
  }
  const std::int64_t padded = (columns.windows + lanes - 1) / lanes * lanes;
  job.phase = padded + (columns.kernel - 1) * columns.dilation / columns.stride + 1;
  for (std::int64_t i = 0; i < columns.kernel; ++i) {
    const std::int64_t at = i * columns.dilation;
    job.taps.push_back(at % columns.stride * job.phase + at / columns.stride);
  }
  for (std::int64_t window = 0; window < padded; ++window) {
    const std::int64_t left = window * columns.stride - columns.padding;
    const std::int64_t outside =
        left < 0 ? (columns.dilation - 1 - left) / columns.dilation * columns.dilation : 0;
    job.lefts.push_back(static_cast<std::int32_t>(left));
    job.starts.push_back(static_cast<std::int32_t>(left + outside));
  }
  return job;
}

}  // namespace tutti::nn::detail

namespace tutti::nn::detail {

// The gradient of x, which pool_pixels pooled.
TUTTI_INLINE at::Tensor spread_pixels(const at::Tensor& gradient, const at::Tensor& x,
                                      const at::Tensor& indices, const PoolOptions& options) {
  const at::Tensor dy = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor dx = ::tutti::detail::host_empty(x.sizes(), at::kFloat, x.suggest_memory_format());
  PixelPoolJob job = pixel_pool_job(options, x.size(1), x.size(2), x.size(3));
  job.dy = dy.const_data_ptr<float>();
  job.winners = indices.const_data_ptr<std::int32_t>();
  job.dx = dx.mutable_data_ptr<float>();
  pool_pixels(job, x.size(0));
  return dx;
}

TUTTI_INLINE torch::autograd::variable_list MaxPoolBackward::apply(
    torch::autograd::variable_list&& gradients) {
  at::Tensor& gradient = gradients[0];
  if (!gradient.defined()) {
    return std::move(gradients);
  }
  const at::Tensor x = x_.unpack();
  if (indices_.scalar_type() == at::kInt && ::tutti::detail::is_host_gradient(gradient)) {
    gradient = spread_pixels(gradient, x, indices_, options_);
  } else {
    gradient = at::max_pool2d_with_indices_backward(gradient, x, options_.kernel, options_.stride,
                                                    options_.padding, options_.dilation,
                                                    options_.ceil_mode, indices_.to(at::kLong));
  }
  return std::move(gradients);
}

TUTTI_INLINE Pooled pool_pixels(const at::Tensor& x, const PoolOptions& options,
                                bool with_indices) {
  PixelPoolJob job = pixel_pool_job(options, x.size(1), x.size(2), x.size(3));
  if (job.rows.windows < 1 || job.columns.windows < 1 || job.channels < lanes ||
      job.rows.dilation > job.rows.size || job.columns.dilation > job.columns.size) {
    return {};  // refused there, or fewer channels than go together, or windows of padding alone
  }
  const std::array<std::int64_t, 4> sizes{x.size(0), x.size(1), job.rows.windows,
                                          job.columns.windows};
  constexpr auto format = at::MemoryFormat::ChannelsLast;
  Pooled out{.y = ::tutti::detail::host_empty(sizes, at::kFloat, format), .indices = {}};
  job.x = x.const_data_ptr<float>();
  job.y = out.y.mutable_data_ptr<float>();
  if (with_indices) {
    out.indices = ::tutti::detail::host_empty(sizes, at::kInt, format);
    job.indices = out.indices.mutable_data_ptr<std::int32_t>();
  }
  pool_pixels(job, x.size(0));
  return out;
}

TUTTI_INLINE Pooled pool_planes(const at::Tensor& x, const PoolOptions& options) {
  PoolJob job = pool_job(options, x.size(2), x.size(3));
  if (job.rows.windows < 1 || job.columns.windows < lanes / 2) {
    return {};  // refused there, or so few windows in a row that eight at once are no faster
  }
  const std::array<std::int64_t, 4> sizes{x.size(0), x.size(1), job.rows.windows,
                                          job.columns.windows};
  const at::MemoryFormat format = x.suggest_memory_format();
  Pooled out{.y = ::tutti::detail::host_empty(sizes, at::kFloat, format),
             .indices = ::tutti::detail::host_empty(sizes, at::kLong, format)};
  job.x = x.const_data_ptr<float>();
  job.y = out.y.mutable_data_ptr<float>();
  job.indices = out.indices.mutable_data_ptr<std::int64_t>();
  const std::int64_t planes = x.size(0) * x.size(1);
  const std::int64_t piece = std::max<std::int64_t>(1, (1 << 16) / (x.size(2) * x.size(3)));
  ::tutti::detail::parallel_each((planes + piece - 1) / piece, [&](std::int64_t i) {
    pool_planes(job, i * piece, std::min((i + 1) * piece, planes));
  });
  return out;
}

TUTTI_INLINE at::Tensor host_max_pool(const at::Tensor& x, const PoolOptions& options) {
  if (x.dim() != 4 || x.numel() == 0 || !::tutti::detail::is_host_floats(x) ||
      x.size(2) * x.size(3) > std::numeric_limits<std::int32_t>::max() / 2 ||
      !x.is_contiguous(x.suggest_memory_format())) {
    return {};
  }
  const bool learns = at::GradMode::is_enabled() && x.requires_grad();
  const bool pixels = x.size(1) > 1 && x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  const Pooled out = pixels ? pool_pixels(x, options, learns) : pool_planes(x, options);
  if (learns && out.y.defined()) {
    ::tutti::detail::set_gradient(out.y, new MaxPoolBackward(x, out.indices, options));
  }
  return out.y;
}

}  // namespace tutti::nn::detail
#endif
