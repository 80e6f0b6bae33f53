// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/paged_memory.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/batch_norm_channels_last.hpp>
#include <tutti/nn/detail/batch_norm_job.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/detail/gradient.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

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

// Batch normalisation in training by the library's own loops, where they are at home.
namespace tutti::nn::detail {

// Where the channels of a batch are: each a plane of every image, or next to each other in every
// pixel, and in which of both the loops are at home.
enum class Channels { planes, rows, other };

inline Channels channels_of(const at::Tensor& x) {
  if (x.dim() < 2 || x.numel() == 0 || !::tutti::detail::is_host_floats(x)) {
    return Channels::other;
  }
  const std::int64_t pixels = x.numel() / x.size(0) / x.size(1);
  if (pixels > 1 && x.is_contiguous()) {
    return pixels >= lanes ? Channels::planes : Channels::other;
  }
  return x.size(0) * pixels >= lanes && x.is_contiguous(x.suggest_memory_format())
             ? Channels::rows
             : Channels::other;
}

// One of the layer's tensors, as the loops need it: undefined, or a float for each channel.
inline bool is_row(const at::Tensor& row, std::int64_t channels) {
  return !row.defined() || (::tutti::detail::is_host_floats(row) && row.dim() == 1 &&
                            row.size(0) == channels && row.is_contiguous());
}

// What `row` holds, or null.
inline float* data(const at::Tensor& row) {
  return row.defined() ? row.mutable_data_ptr<float>() : nullptr;
}

inline at::Tensor empty_row(std::int64_t channels) {
  return ::tutti::detail::host_empty(channels, at::kFloat);
}

class BatchNormBackward final : public torch::autograd::Node {
 public:
  BatchNormBackward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    at::Tensor mean, at::Tensor inverse, double eps)
      : x_(x, /*is_output=*/false),
        weight_(weight, /*is_output=*/false),
        mean_(std::move(mean)),
        inverse_(std::move(inverse)),
        eps_(eps) {
    for (const at::Tensor& input : {x, weight, bias}) {
      add_next_edge(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                    : torch::autograd::Edge());
    }
  }

  void release_variables() override {
    x_.reset_data();
    weight_.reset_data();
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    torch::autograd::variable_list out(3);
    const at::Tensor& dy = gradients[0];
    if (!dy.defined()) {
      return out;
    }
    const at::Tensor x = x_.unpack();
    const at::Tensor weight = weight_.unpack();
    const std::array<bool, 3> wanted{task_should_compute_output(0), task_should_compute_output(1),
                                     task_should_compute_output(2)};
    if (channels_of(x) == Channels::rows && is_row(weight, x.size(1)) &&
        ::tutti::detail::is_host_gradient(dy)) {
      differentiate(x, weight, dy, wanted, out);
    } else {
      std::tie(out[0], out[1], out[2]) = at::native_batch_norm_backward(
          dy, x, weight.defined() ? std::optional(weight) : std::nullopt, {}, {}, mean_, inverse_,
          /*train=*/true, eps_, wanted);
    }
    return out;
  }

  void differentiate(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& dy,
                     const std::array<bool, 3>& wanted, torch::autograd::variable_list& out) const {
    ::tutti::detail::bring_memory(weight);
    const at::MemoryFormat format = x.suggest_memory_format();
    const at::Tensor same_order = dy.contiguous(format);
    out[0] = wanted[0] ? ::tutti::detail::host_empty(x.sizes(), at::kFloat, format) : at::Tensor();
    out[1] = wanted[1] ? empty_row(x.size(1)) : at::Tensor();
    out[2] = wanted[2] ? empty_row(x.size(1)) : at::Tensor();
    differentiate_rows({.pixels = x.numel() / x.size(1),
                        .channels = x.size(1),
                        .x = x.const_data_ptr<float>(),
                        .dy = same_order.const_data_ptr<float>(),
                        .weight = data(weight),
                        .mean = data(mean_),
                        .inverse = data(inverse_),
                        .dx = data(out[0]),
                        .dweight = data(out[1]),
                        .dbias = data(out[2])});
  }

  torch::autograd::SavedVariable x_, weight_;
  at::Tensor mean_, inverse_;
  double eps_;
};

// The loops can do what `layer`, for tensors of `dim` dimensions, does with x in training. They
// leave to LibTorch what it refuses.
template <class Layer>
bool is_host_batch_norm(const Layer& layer, const at::Tensor& x, std::int64_t dim) {
  if (!layer.is_training() || x.dim() != dim || channels_of(x) == Channels::other) {
    return false;
  }
  const std::int64_t channels = x.size(1);
  return is_row(layer.weight, channels) && is_row(layer.bias, channels) &&
         is_row(layer.running_mean, channels) && is_row(layer.running_var, channels) &&
         layer.running_mean.defined() == layer.running_var.defined();
}

// Counts a batch. Returns how far the running statistics go towards its own.
template <class Layer>
double next_momentum(Layer& layer) {
  if (!layer.options.track_running_stats() || !layer.num_batches_tracked.defined()) {
    return layer.options.momentum().value_or(0.0);
  }
  layer.num_batches_tracked += 1;
  return layer.options.momentum() ? *layer.options.momentum()  // else the mean over all batches
                                  : 1 / layer.num_batches_tracked.template item<double>();
}

// What `layer` gives for x in training; it follows the running statistics.
template <class Layer>
at::Tensor host_batch_norm(Layer& layer, const at::Tensor& x) {
  ::tutti::detail::bring_memory(layer.weight);
  ::tutti::detail::bring_memory(layer.bias);
  const at::Tensor y =
      ::tutti::detail::host_empty(x.sizes(), at::kFloat, x.suggest_memory_format());
  const at::Tensor mean = empty_row(x.size(1));
  const at::Tensor inverse = empty_row(x.size(1));
  const BatchNormJob job{.images = x.size(0),
                         .channels = x.size(1),
                         .pixels = x.numel() / x.size(0) / x.size(1),
                         .x = x.const_data_ptr<float>(),
                         .weight = data(layer.weight),
                         .bias = data(layer.bias),
                         .y = data(y),
                         .mean = data(mean),
                         .inverse = data(inverse),
                         .running_mean = data(layer.running_mean),
                         .running_var = data(layer.running_var),
                         .momentum = next_momentum(layer),
                         .eps = layer.options.eps()};
  if (channels_of(x) == Channels::rows) {
    normalize_rows(job);
  } else {
    ::tutti::detail::parallel_each(job.channels,
                                   [&](std::int64_t channel) { normalize_channel(job, channel); });
  }
  const auto learns = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  if (at::GradMode::is_enabled() && (learns(x) || learns(layer.weight) || learns(layer.bias))) {
    ::tutti::detail::set_gradient(
        y, new BatchNormBackward(x, layer.weight, layer.bias, mean, inverse, layer.options.eps()));
  }
  return y;
}

}  // namespace tutti::nn::detail
