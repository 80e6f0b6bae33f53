// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/rms_norm.hpp>

#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/paged_memory.hpp>
#include <tutti/nn/detail/gradient.hpp>

#include <ATen/ops/rms_norm.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

// Root mean square normalisation of rows of floats on the CPU, and its gradient: each row is read
// while it is in the cache, where ATen's operators go through all rows five times.
namespace tutti::nn::detail {

struct RmsJob {
  std::int64_t rows = 0, width = 0;
  const float* x = nullptr;
  const float* weight = nullptr;  // null: 1
  float* y = nullptr;
  float* inverse = nullptr;  // 1 / sqrt(mean of squares + eps) of each row
  double eps = 0;
};

struct RmsGradientJob {
  std::int64_t rows = 0, width = 0;
  const float* x = nullptr;
  const float* dy = nullptr;
  const float* weight = nullptr;  // null: 1
  const float* inverse = nullptr;
  float* dx = nullptr;  // null: not wanted
};

[[gnu::always_inline]] inline float sum_of(const Floats& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

[[gnu::always_inline]] inline float sum_of_squares(const float* x, std::int64_t n) {
  Floats first{}, second{}, a{}, b{};
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    load(a, x + i);
    load(b, x + i + lanes);
    first += a * a;
    second += b * b;
  }
  first += second;
  float sum = sum_of(first);
  for (; i < n; ++i) {
    sum += x[i] * x[i];
  }
  return sum;
}

[[gnu::always_inline]] inline void rms_rows(const RmsJob& job, std::int64_t begin,
                                            std::int64_t end) {
  const std::int64_t n = job.width;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = job.x + row * n;
    float* y = job.y + row * n;
    const double mean = static_cast<double>(sum_of_squares(x, n)) / static_cast<double>(n);
    const auto inverse = static_cast<float>(1 / std::sqrt(mean + job.eps));
    job.inverse[row] = inverse;
    std::int64_t i = 0;
    Floats v{}, w{};
    for (; i + lanes <= n; i += lanes) {
      load(v, x + i);
      v *= inverse;
      if (job.weight != nullptr) {
        load(w, job.weight + i);
        v *= w;
      }
      store(y + i, v);
    }
    for (; i < n; ++i) {
      y[i] = x[i] * inverse * (job.weight != nullptr ? job.weight[i] : 1.0F);
    }
  }
}

// dx of rows [begin, end), and the sum over them of dy * x * inverse, added to `dweight` unless
// that is null.
[[gnu::always_inline]] inline void rms_gradient_rows(const RmsGradientJob& job, std::int64_t begin,
                                                     std::int64_t end, float* dweight) {
  const std::int64_t n = job.width;
  const auto weight = [&](std::int64_t i) { return job.weight != nullptr ? job.weight[i] : 1.0F; };
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = job.x + row * n;
    const float* dy = job.dy + row * n;
    const float inverse = job.inverse[row];
    Floats sums{}, v{}, g{}, w{}, d{};
    float sum = 0;
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      load(v, x + i);
      load(g, dy + i);
      v *= g;
      if (dweight != nullptr) {
        load(d, dweight + i);
        d += v * inverse;
        store(dweight + i, d);
      }
      if (job.weight != nullptr) {
        load(w, job.weight + i);
        v *= w;
      }
      sums += v;
    }
    for (; i < n; ++i) {
      const float product = x[i] * dy[i];
      if (dweight != nullptr) {
        dweight[i] += product * inverse;
      }
      sum += product * weight(i);
    }
    if (job.dx == nullptr) {
      continue;
    }
    sum += sum_of(sums);
    const float back = sum * inverse * inverse * inverse / static_cast<float>(n);
    float* dx = job.dx + row * n;
    for (i = 0; i + lanes <= n; i += lanes) {
      load(v, x + i);
      load(g, dy + i);
      g *= inverse;
      if (job.weight != nullptr) {
        load(w, job.weight + i);
        g *= w;
      }
      g -= v * back;
      store(dx + i, g);
    }
    for (; i < n; ++i) {
      dx[i] = dy[i] * inverse * weight(i) - x[i] * back;
    }
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void rms_rows_avx2(const RmsJob& job, std::int64_t begin,
                                                      std::int64_t end) {
  rms_rows(job, begin, end);
}
[[gnu::target("avx2,fma")]] inline void rms_gradient_rows_avx2(const RmsGradientJob& job,
                                                               std::int64_t begin, std::int64_t end,
                                                               float* dweight) {
  rms_gradient_rows(job, begin, end, dweight);
}
#endif

// Rows that one thread takes at a time: few enough for all threads, enough to be worth their start.
TUTTI_INLINE constexpr std::int64_t rms_numbers = 32768;

TUTTI_INLINE std::int64_t rms_step(std::int64_t width) {
  return std::max<std::int64_t>(1, rms_numbers / std::max<std::int64_t>(1, width));
}

TUTTI_INLINE void rms_forward(const RmsJob& job) {
  const std::int64_t step = rms_step(job.width);
  ::tutti::detail::parallel_each((job.rows + step - 1) / step, [&](std::int64_t piece) {
    const std::int64_t begin = piece * step;
    const std::int64_t end = std::min(job.rows, begin + step);
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      rms_rows_avx2(job, begin, end);
      return;
    }
#endif
    rms_rows(job, begin, end);
  });
}

// dweight: null, or [width], which is overwritten. Sums are taken piece by piece and then of the
// pieces in order, so they do not depend on the threads.
TUTTI_INLINE void rms_backward(const RmsGradientJob& job, float* dweight) {
  const std::int64_t step = rms_step(job.width);
  const std::int64_t pieces = (job.rows + step - 1) / step;
  const auto width = static_cast<std::size_t>(job.width);
  std::vector<float> sums(dweight != nullptr ? static_cast<std::size_t>(pieces) * width : 0);
  ::tutti::detail::parallel_each(pieces, [&](std::int64_t piece) {
    const std::int64_t begin = piece * step;
    const std::int64_t end = std::min(job.rows, begin + step);
    float* sum =
        dweight != nullptr ? sums.data() + static_cast<std::size_t>(piece) * width : nullptr;
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      rms_gradient_rows_avx2(job, begin, end, sum);
      return;
    }
#endif
    rms_gradient_rows(job, begin, end, sum);
  });
  if (dweight != nullptr) {
    std::fill_n(dweight, width, 0.0F);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      dweight[i % width] += sums[i];
    }
  }
}

}  // namespace tutti::nn::detail

namespace tutti::nn {
TUTTI_INLINE PlainRMSNormImpl::~PlainRMSNormImpl() = default;

TUTTI_INLINE PlainRMSNormImpl::PlainRMSNormImpl(const RMSNormOptions& with) : options(with) {
  reset();
}

TUTTI_INLINE PlainRMSNormImpl::PlainRMSNormImpl(std::int64_t size, double eps)
    : PlainRMSNormImpl(RMSNormOptions{.size = size, .eps = eps}) {}

TUTTI_INLINE void PlainRMSNormImpl::reset() {
  weight = register_parameter("weight", at::ones({options.size}));
}
}  // namespace tutti::nn

namespace tutti::nn::detail {

TUTTI_INLINE RmsNormBackward::RmsNormBackward(const at::Tensor& x, const at::Tensor& weight,
                                              at::Tensor inverse, double eps)
    : x_(x, /*is_output=*/false),
      weight_(weight, /*is_output=*/false),
      inverse_(std::move(inverse)),
      eps_(eps) {
  for (const at::Tensor& input : {x, weight}) {
    add_next_edge(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                  : torch::autograd::Edge());
  }
}

TUTTI_INLINE RmsNormBackward::~RmsNormBackward() = default;

// In ATen's operators, so that they have gradients of their own.
TUTTI_INLINE std::array<at::Tensor, 2> rms_gradients(const at::Tensor& x, const at::Tensor& weight,
                                                     double eps, const at::Tensor& dy) {
  const at::Tensor inverse = x.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  const at::Tensor unit = x.mul(inverse);
  const at::Tensor weighted = weight.defined() ? dy.mul(weight) : dy;
  const at::Tensor common = weighted.mul(unit).mean(-1, /*keepdim=*/true);
  return {weighted.sub(unit.mul(common)).mul(inverse),
          dy.mul(unit).reshape({-1, x.size(-1)}).sum(0)};
}

TUTTI_INLINE torch::autograd::variable_list RmsNormBackward::apply(
    torch::autograd::variable_list&& gradients) {
  torch::autograd::variable_list out(2);
  if (!gradients[0].defined()) {
    return out;
  }
  const at::Tensor x = x_.unpack();
  const at::Tensor weight = weight_.unpack();
  const bool wants_weight = weight.defined() && task_should_compute_output(1);
  if (!::tutti::detail::is_host_gradient(gradients[0])) {
    const auto [dx, dweight] = rms_gradients(x, weight, eps_, gradients[0]);
    out[0] = dx;
    out[1] = wants_weight ? dweight : at::Tensor();
    return out;
  }
  const at::Tensor dy = gradients[0].contiguous();
  ::tutti::detail::bring_memory(weight);
  if (task_should_compute_output(0)) {
    out[0] = ::tutti::detail::host_empty(x.sizes(), at::kFloat);
  }
  if (wants_weight) {
    out[1] = ::tutti::detail::host_empty(weight.sizes(), at::kFloat);
  }
  rms_backward({.rows = inverse_.numel(),
                .width = x.size(-1),
                .x = x.const_data_ptr<float>(),
                .dy = dy.const_data_ptr<float>(),
                .weight = weight.defined() ? weight.const_data_ptr<float>() : nullptr,
                .inverse = inverse_.const_data_ptr<float>(),
                .dx = out[0].defined() ? out[0].mutable_data_ptr<float>() : nullptr},
               out[1].defined() ? out[1].mutable_data_ptr<float>() : nullptr);
  return out;
}

// The library's own loops, for contiguous floats in the CPU's memory.
TUTTI_INLINE at::Tensor rms_norm_on_host(const at::Tensor& x, const at::Tensor& weight,
                                         double eps) {
  const std::int64_t width = x.size(-1);
  const std::int64_t rows = x.numel() / width;
  ::tutti::detail::bring_memory(weight);
  at::Tensor y = ::tutti::detail::host_empty(x.sizes(), at::kFloat);
  at::Tensor inverse = ::tutti::detail::host_empty({rows}, at::kFloat);
  rms_forward({.rows = rows,
               .width = width,
               .x = x.const_data_ptr<float>(),
               .weight = weight.defined() ? weight.const_data_ptr<float>() : nullptr,
               .y = y.mutable_data_ptr<float>(),
               .inverse = inverse.mutable_data_ptr<float>(),
               .eps = eps});
  if (at::GradMode::is_enabled() &&
      (x.requires_grad() || (weight.defined() && weight.requires_grad()))) {
    ::tutti::detail::set_gradient(y, new RmsNormBackward(x, weight, std::move(inverse), eps));
  }
  return y;
}

}  // namespace tutti::nn::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TUTTI_CHECK(
      x.dim() >= 1 && (!weight.defined() || (weight.dim() == 1 && weight.size(0) == x.size(-1))),
      "rms_norm: the input is ", x.sizes(), " and the weight ",
      weight.defined() ? weight.sizes() : at::IntArrayRef(),
      ", expected a weight for the last dimension");
  const bool weight_on_host =
      !weight.defined() || (::tutti::detail::is_host_floats(weight) && weight.is_contiguous());
  if (::tutti::detail::is_host_floats(x) && x.numel() > 0 && weight_on_host) {
    return nn::detail::rms_norm_on_host(x.contiguous(), weight, eps);
  }
  if (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) {
    return at::rms_norm(x, {x.size(-1)}, weight.defined() ? std::optional(weight) : std::nullopt,
                        eps);
  }
  const at::Tensor y = at::rms_norm(x, {x.size(-1)}, {}, eps);  // rounded before the weight
  return weight.defined() ? weight.mul(y) : y;
}

}  // namespace tutti::functional
