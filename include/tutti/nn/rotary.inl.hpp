// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/rotary.hpp>

#include <tutti/core/detail/host_empty.hpp>
#include <tutti/nn/detail/gradient.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>

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

TUTTI_INLINE void rotate_rows(const RotaryJob& job) {
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

namespace tutti::nn::detail {

at::Tensor rotated(const at::Tensor& x, const RotaryTables& tables, bool back);

// The gradient of a rotation: the one back.
class RotaryBackward final : public torch::autograd::Node {
 public:
  RotaryBackward(const at::Tensor& x, RotaryTables tables, bool back)
      : tables_(std::move(tables)), back_(back) {
    add_next_edge(torch::autograd::impl::gradient_edge(x));
  }

  void release_variables() override { tables_ = {}; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  RotaryTables tables_;
  bool back_;
};

TUTTI_INLINE torch::autograd::variable_list RotaryBackward::apply(
    torch::autograd::variable_list&& gradients) {
  if (gradients[0].defined()) {
    TUTTI_CHECK(tables_.cos.defined(),
                "rotate: the graph was freed by its first backward pass; keep it with "
                "retain_graph");
    gradients[0] = rotated(gradients[0], tables_, !back_);
  }
  return std::move(gradients);
}

// In ATen's operators: any device and type.
TUTTI_INLINE at::Tensor rotated_anywhere(const at::Tensor& x, const RotaryTables& tables,
                                         bool back) {
  const at::Tensor cos = tables.cos.unsqueeze(2);  // [., T, 1, d / 2]
  const at::Tensor sin = back ? tables.sin.unsqueeze(2).neg() : tables.sin.unsqueeze(2);
  const std::int64_t half = cos.size(-1);
  const at::Tensor a = x.narrow(-1, 0, half);
  const at::Tensor b = x.narrow(-1, half, half);
  const at::Tensor first = a.mul(cos).sub(b.mul(sin));
  const at::Tensor second = b.mul(cos).add(a.mul(sin));
  const std::int64_t rest = x.size(-1) - 2 * half;
  return rest == 0 ? at::cat({first, second}, -1)
                   : at::cat({first, second, x.narrow(-1, 2 * half, rest)}, -1);
}

// The library's own loops, for floats in the CPU's memory.
TUTTI_INLINE at::Tensor rotated_on_host(const at::Tensor& x, const RotaryTables& tables,
                                        bool back) {
  at::Tensor y = ::tutti::detail::host_empty(x.sizes(), at::kFloat);
  rotate_rows({.batch = x.size(0),
               .length = x.size(1),
               .heads = x.size(2),
               .width = x.size(3),
               .half = tables.cos.size(-1),
               .batch_stride = x.stride(0),
               .length_stride = x.stride(1),
               .head_stride = x.stride(2),
               .tables = tables.cos.size(0),
               .direction = back ? -1.0F : 1.0F,
               .x = x.const_data_ptr<float>(),
               .cos = tables.cos.const_data_ptr<float>(),
               .sin = tables.sin.const_data_ptr<float>(),
               .y = y.mutable_data_ptr<float>()});
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    ::tutti::detail::set_gradient(y, new RotaryBackward(x, tables, back));
  }
  return y;
}

TUTTI_INLINE at::Tensor rotated(const at::Tensor& x, const RotaryTables& tables, bool back) {
  const auto dense = [](const at::Tensor& table) {
    return ::tutti::detail::is_host_floats(table) && table.is_contiguous();
  };
  const bool on_host =
      ::tutti::detail::is_host_floats(x) && x.numel() > 0 && dense(tables.cos) && dense(tables.sin);
  if (!on_host) {
    return rotated_anywhere(x, tables, back);
  }
  return rotated_on_host(x.stride(-1) == 1 ? x : x.contiguous(), tables, back);
}

}  // namespace tutti::nn::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor rotate(const at::Tensor& x, const nn::RotaryTables& tables) {
  const at::Tensor& cos = tables.cos;
  TUTTI_CHECK(x.dim() == 4 && cos.dim() == 3 && cos.sizes() == tables.sin.sizes() &&
                  (cos.size(0) == 1 || cos.size(0) == x.size(0)) && cos.size(1) == x.size(1) &&
                  2 * cos.size(2) <= x.size(3),
              "rotate: the input is ", x.sizes(), " and the tables ", cos.sizes(), " and ",
              tables.sin.sizes(), ", expected [N, T, heads, D] and [1 or N, T, at most D / 2]");
  return nn::detail::rotated(x, tables, /*back=*/false);
}

}  // namespace tutti::functional

namespace tutti::nn {

TUTTI_INLINE Rotary::Rotary(std::int64_t head_dim, const RotaryOptions& options)
    : options_(options),
      dim_(static_cast<std::int64_t>(static_cast<double>(head_dim) *
                                     options.partial_rotary_factor)) {
  TUTTI_CHECK_VALUE(dim_ >= 2 && dim_ % 2 == 0 && dim_ <= head_dim, "RoPE: head_dim is ", head_dim,
                    " and partial_rotary_factor ", options.partial_rotary_factor, ", so ", dim_,
                    " numbers of a head turn; expected an even number from 2 to head_dim");
  check();
}

TUTTI_INLINE void Rotary::check() const {
  const RotaryOptions& o = options_;
  const std::string_view type = to_string(o.rope_type);
  TUTTI_CHECK_VALUE(o.rope_theta > 0, "RoPE: rope_theta is ", o.rope_theta, ", expected above 0");
  TUTTI_CHECK_VALUE(o.max_position_embeddings >= 1 && o.original_max_position_embeddings >= 0,
                    "RoPE: max_position_embeddings is ", o.max_position_embeddings,
                    " and original_max_position_embeddings ", o.original_max_position_embeddings,
                    ", expected positive numbers");
  const bool needs_factor = o.rope_type == RopeType::linear || o.rope_type == RopeType::dynamic ||
                            o.rope_type == RopeType::llama3;
  TUTTI_CHECK_VALUE(o.factor || !needs_factor, "RoPE: rope_type is \"", type,
                    "\" and there is no factor, expected a number");
  TUTTI_CHECK_VALUE(!o.factor || *o.factor > 0, "RoPE: factor is ", o.factor.value_or(0),
                    ", expected above 0");
  if (o.rope_type == RopeType::dynamic) {
    TUTTI_CHECK_VALUE(dim_ > 2, "RoPE: rope_type is \"dynamic\" and ", dim_,
                      " numbers of a head turn, expected more than 2");
  }
  if (o.rope_type == RopeType::llama3) {
    TUTTI_CHECK_VALUE(o.low_freq_factor > 0 && o.high_freq_factor > o.low_freq_factor,
                      "RoPE: low_freq_factor is ", o.low_freq_factor, " and high_freq_factor ",
                      o.high_freq_factor, ", expected 0 < low < high");
  }
  if (o.rope_type == RopeType::longrope) {
    const auto half = static_cast<std::size_t>(dim_ / 2);
    TUTTI_CHECK_VALUE(o.short_factor.size() == half && o.long_factor.size() == half,
                      "RoPE: short_factor has ", o.short_factor.size(), " numbers and long_factor ",
                      o.long_factor.size(), ", expected ", half, " each");
  }
}

TUTTI_INLINE std::int64_t Rotary::original_length() const {
  return options_.original_max_position_embeddings > 0 ? options_.original_max_position_embeddings
                                                       : options_.max_position_embeddings;
}

TUTTI_INLINE double Rotary::factor() const {
  return options_.factor ? *options_.factor
                         : static_cast<double>(options_.max_position_embeddings) /
                               static_cast<double>(original_length());
}

TUTTI_INLINE at::Tensor Rotary::plain_frequencies(double theta) const {
  const at::Tensor exponents =
      at::arange(0, dim_, 2, at::TensorOptions(at::kFloat).device(at::kCPU)).div(dim_);
  return at::pow(theta, exponents).reciprocal();
}

TUTTI_INLINE at::Tensor Rotary::llama3_frequencies() const {
  at::Tensor out = plain_frequencies(options_.rope_theta);
  auto* f = out.mutable_data_ptr<float>();
  const auto length = static_cast<double>(original_length());
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const auto plain = static_cast<double>(f[i]);
    const double wave = 2 * std::numbers::pi / plain;
    const double t = (length / wave - options_.low_freq_factor) /
                     (options_.high_freq_factor - options_.low_freq_factor);
    if (wave > length / options_.low_freq_factor) {
      f[i] = static_cast<float>(plain / factor());
    } else if (wave >= length / options_.high_freq_factor) {
      f[i] = static_cast<float>((1 - t) * plain / factor() + t * plain);
    }
  }
  return out;
}

TUTTI_INLINE at::Tensor Rotary::yarn_frequencies() const {
  const auto d = static_cast<double>(dim_);
  // Where along the frequencies a wave turns `turns` times within the original length.
  const auto place = [&](double turns) {
    return d * std::log(static_cast<double>(original_length()) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(options_.rope_theta));
  };
  double low = place(options_.beta_fast);
  double high = place(options_.beta_slow);
  if (options_.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) {
    high += 0.001;
  }
  const at::Tensor plain = plain_frequencies(options_.rope_theta);
  const at::Tensor ramp = at::arange(dim_ / 2, at::TensorOptions(at::kFloat).device(at::kCPU))
                              .sub(low)
                              .div(high - low)
                              .clamp(0, 1);
  return plain.div(factor()).mul(ramp).add(plain.mul(ramp.neg().add(1)));
}

TUTTI_INLINE at::Tensor Rotary::frequencies(std::int64_t length) const {
  const double theta = options_.rope_theta;
  switch (options_.rope_type) {
    case RopeType::plain:
      break;
    case RopeType::linear:
      return plain_frequencies(theta).div(factor());
    case RopeType::dynamic: {
      const auto d = static_cast<double>(dim_);
      const auto longest = static_cast<double>(options_.max_position_embeddings);
      const double times = std::max(static_cast<double>(length), longest) / longest;
      return plain_frequencies(theta * std::pow(factor() * times - (factor() - 1), d / (d - 2)));
    }
    case RopeType::llama3:
      return llama3_frequencies();
    case RopeType::yarn:
      return yarn_frequencies();
    case RopeType::longrope: {
      const std::vector<double>& by =
          length > original_length() ? options_.long_factor : options_.short_factor;
      return plain_frequencies(theta).div(
          at::tensor(by, at::TensorOptions(at::kFloat).device(at::kCPU)));
    }
  }
  return plain_frequencies(theta);
}

TUTTI_INLINE bool Rotary::depends_on_length(std::int64_t most) const {
  return (options_.rope_type == RopeType::dynamic && most > options_.max_position_embeddings) ||
         (options_.rope_type == RopeType::longrope && most > original_length());
}

TUTTI_INLINE double Rotary::attention_factor() const {
  if (options_.rope_type != RopeType::yarn && options_.rope_type != RopeType::longrope) {
    return 1;
  }
  if (options_.attention_factor) {
    return *options_.attention_factor;
  }
  const double s = factor();
  if (options_.rope_type == RopeType::longrope) {
    const auto length = static_cast<double>(original_length());
    return s <= 1 ? 1 : std::sqrt(1 + std::log(s) / std::log(length));
  }
  const auto scale = [s](double by) { return s <= 1 ? 1 : 0.1 * by * std::log(s) + 1; };
  const double all = options_.mscale_all_dim.value_or(0);
  return options_.mscale.value_or(0) != 0 && all != 0 ? scale(*options_.mscale) / scale(all)
                                                      : scale(1);
}

// A copy to another device is made once: it would wait for the device, and a graph that is being
// captured has no place for it.
TUTTI_INLINE const at::Tensor& Rotary::on_device(at::Device device, std::int64_t length) {
  const std::int64_t wanted = depends_on_length() ? length : -1;
  if (!kept_.defined() || kept_.device() != device || kept_for_ != wanted) {
    kept_ = frequencies(length).to(device);
    kept_for_ = wanted;
  }
  return kept_;
}

TUTTI_INLINE RotaryTables Rotary::tables(const at::Tensor& positions, const at::Tensor& like,
                                         std::int64_t length) {
  const c10::NoGradGuard no_grad;
  if (length < 0 && depends_on_length()) {
    length = positions.max().item<std::int64_t>() + 1;
  }
  const at::Tensor angles =
      positions.to(at::kFloat).unsqueeze(-1).mul(on_device(positions.device(), length));
  const double by = attention_factor();
  const auto table = [&](const at::Tensor& values) {
    return (by == 1 ? values : values.mul(by)).to(like.device(), like.scalar_type());
  };
  return {table(angles.cos()), table(angles.sin())};
}

}  // namespace tutti::nn
