// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/swiglu.hpp>

#include <utility>

#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/detail/gradient.hpp>
#include <tutti/nn/detail/swiglu_rows.hpp>

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

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
