// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/detail/gradient.hpp>
#include <tutti/nn/detail/max_pool_channels_last.hpp>
#include <tutti/nn/detail/max_pool_planes.hpp>
#include <tutti/nn/detail/pool_windows.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

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
