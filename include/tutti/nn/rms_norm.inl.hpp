// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/rms_norm.hpp>

#include <tutti/core/detail/host_empty.hpp>
#include <tutti/nn/detail/gradient.hpp>
#include <tutti/nn/detail/rms_rows.hpp>

#include <ATen/ops/rms_norm.h>

namespace tutti::nn {
TUTTI_INLINE PlainRMSNormImpl::~PlainRMSNormImpl() = default;
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
