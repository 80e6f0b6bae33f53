// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/floats.hpp>
#include <tutti/nn/swiglu.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/detail/gradient.hpp>

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

// SwiGLU over floats on the CPU and its gradient, in one pass each; ATen's operators make two and
// four, and keep a tensor more for the gradient.
namespace tutti::nn::detail {

// 1 / (1 + e^-x), to 2 units in the last place. e^x is 2^n * e^r with |r| <= ln(2) / 2, e^r by its
// Taylor series (Cephes' coefficients).
[[gnu::always_inline]] inline void sigmoid(const Floats& x, Floats& out) {
  constexpr float to_round = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats most = Floats{} + 87.0F;
  Floats y = -x;
  y = y > most ? most : y;
  y = y < -most ? -most : y;
  const Floats n = (y * 1.44269504088896341F + to_round) - to_round;
  const Floats r = (y - n * 0.693359375F) + n * 2.12194440e-4F;
  Floats p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const Lanes bits = (__builtin_convertvector(n, Lanes) + 127) << 23;
  Floats scale{};
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  out = 1.0F / (1.0F + p * scale);
}

struct SwigluJob {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* y = nullptr;
};

struct SwigluGradientJob {
  const float* gate = nullptr;
  const float* up = nullptr;
  const float* dy = nullptr;
  float* dgate = nullptr;
  float* dup = nullptr;
};

// y = gate * sigmoid(gate) * up of numbers [begin, end).
[[gnu::always_inline]] inline void swiglu_numbers(const SwigluJob& job, std::int64_t begin,
                                                  std::int64_t end) {
  Floats g{}, u{}, s{};
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    load(g, job.gate + i);
    load(u, job.up + i);
    sigmoid(g, s);
    g = g * s * u;
    store(job.y + i, g);
  }
  for (; i < end; ++i) {
    job.y[i] = job.gate[i] / (1 + std::exp(-job.gate[i])) * job.up[i];
  }
}

[[gnu::always_inline]] inline void swiglu_gradients(const SwigluGradientJob& job,
                                                    std::int64_t begin, std::int64_t end) {
  Floats g{}, u{}, d{}, s{};
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    load(g, job.gate + i);
    load(u, job.up + i);
    load(d, job.dy + i);
    sigmoid(g, s);
    const Floats dup = d * g * s;
    const Floats dgate = d * u * s * (1.0F + g * (1.0F - s));
    store(job.dup + i, dup);
    store(job.dgate + i, dgate);
  }
  for (; i < end; ++i) {
    const float gate = job.gate[i];
    const float sigma = 1 / (1 + std::exp(-gate));
    job.dup[i] = job.dy[i] * gate * sigma;
    job.dgate[i] = job.dy[i] * job.up[i] * sigma * (1 + gate * (1 - sigma));
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void swiglu_numbers_avx2(const SwigluJob& job,
                                                            std::int64_t begin, std::int64_t end) {
  swiglu_numbers(job, begin, end);
}
[[gnu::target("avx2,fma")]] inline void swiglu_gradients_avx2(const SwigluGradientJob& job,
                                                              std::int64_t begin,
                                                              std::int64_t end) {
  swiglu_gradients(job, begin, end);
}
#endif

// run(begin, end) for pieces of `count` numbers.
template <class Run>
void in_pieces(std::int64_t count, Run&& run) {
  constexpr std::int64_t step = 32768;
  ::tutti::detail::parallel_each((count + step - 1) / step, [&](std::int64_t piece) {
    run(piece * step, std::min(count, (piece + 1) * step));
  });
}

TUTTI_INLINE void swiglu_forward(const SwigluJob& job, std::int64_t count) {
  in_pieces(count, [&](std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      swiglu_numbers_avx2(job, begin, end);
      return;
    }
#endif
    swiglu_numbers(job, begin, end);
  });
}

TUTTI_INLINE void swiglu_backward(const SwigluGradientJob& job, std::int64_t count) {
  in_pieces(count, [&](std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      swiglu_gradients_avx2(job, begin, end);
      return;
    }
#endif
    swiglu_gradients(job, begin, end);
  });
}

}  // namespace tutti::nn::detail

namespace tutti::nn::detail {

class SwigluBackward final : public torch::autograd::Node {
 public:
  SwigluBackward(const at::Tensor& gate, const at::Tensor& up)
      : gate_(gate, /*is_output=*/false), up_(up, /*is_output=*/false) {
    add_next_edge(torch::autograd::impl::gradient_edge(gate));
    add_next_edge(torch::autograd::impl::gradient_edge(up));
  }

  void release_variables() override {
    gate_.reset_data();
    up_.reset_data();
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  torch::autograd::SavedVariable gate_, up_;
};

TUTTI_INLINE torch::autograd::variable_list SwigluBackward::apply(
    torch::autograd::variable_list&& gradients) {
  if (!gradients[0].defined()) {
    return torch::autograd::variable_list(2);
  }
  const at::Tensor gate = gate_.unpack();
  const at::Tensor up = up_.unpack();
  if (!::tutti::detail::is_host_gradient(gradients[0])) {  // operators that have gradients
    const at::Tensor& dy = gradients[0];
    const at::Tensor sigma = at::sigmoid(gate);
    const at::Tensor slope = sigma.mul(gate.mul(sigma.neg().add(1)).add(1));
    return {dy.mul(up).mul(slope), dy.mul(gate).mul(sigma)};
  }
  const at::Tensor dy = gradients[0].contiguous();
  at::Tensor dgate = ::tutti::detail::host_empty(gate.sizes(), at::kFloat);
  at::Tensor dup = ::tutti::detail::host_empty(gate.sizes(), at::kFloat);
  swiglu_backward({.gate = gate.const_data_ptr<float>(),
                   .up = up.const_data_ptr<float>(),
                   .dy = dy.const_data_ptr<float>(),
                   .dgate = dgate.mutable_data_ptr<float>(),
                   .dup = dup.mutable_data_ptr<float>()},
                  gate.numel());
  return {std::move(dgate), std::move(dup)};
}

}  // namespace tutti::nn::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  TUTTI_CHECK(gate.sizes() == up.sizes(), "swiglu: the gate is ", gate.sizes(),
              " and what it opens for ", up.sizes(), ", expected one shape");
  if (!::tutti::detail::is_host_floats(gate) || !::tutti::detail::is_host_floats(up)) {
    return at::silu(gate).mul(up);
  }
  const at::Tensor g = gate.contiguous();
  const at::Tensor u = up.contiguous();
  at::Tensor y = ::tutti::detail::host_empty(g.sizes(), at::kFloat);
  nn::detail::swiglu_forward({.gate = g.const_data_ptr<float>(),
                              .up = u.const_data_ptr<float>(),
                              .y = y.mutable_data_ptr<float>()},
                             g.numel());
  if (at::GradMode::is_enabled() && (g.requires_grad() || u.requires_grad())) {
    ::tutti::detail::set_gradient(y, new nn::detail::SwigluBackward(g, u));
  }
  return y;
}

}  // namespace tutti::functional
