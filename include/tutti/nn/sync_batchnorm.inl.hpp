// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/sync_batchnorm.hpp>

#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/detail/gradient.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::nn {

TUTTI_INLINE SyncBatchNorm::~SyncBatchNorm() = default;

}  // namespace tutti::nn

namespace tutti::nn::detail {

// All dimensions but the channels'.
TUTTI_INLINE std::vector<std::int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<std::int64_t> out{0};
  for (std::int64_t dim = 2; dim < x.dim(); ++dim) {
    out.push_back(dim);
  }
  return out;
}

// [C] as it broadcasts to x, in its type.
TUTTI_INLINE at::Tensor per_channel(const at::Tensor& values, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  return values.to(x.scalar_type()).view(shape);
}

// In which type half-precision inputs are computed with.
TUTTI_INLINE at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

class SyncBatchNormBackward final : public torch::autograd::Node {
 public:
  // mean, scale: [C] in double, of all ranks. count: one number, a tensor of the device.
  SyncBatchNormBackward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        at::Tensor mean, at::Tensor scale, at::Tensor count, SumOverRanks sum)
      : x_(x, /*is_output=*/false),
        weight_(weight, /*is_output=*/false),
        mean_(std::move(mean)),
        scale_(std::move(scale)),
        count_(std::move(count)),
        sum_(std::move(sum)) {
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
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  torch::autograd::SavedVariable x_;
  torch::autograd::SavedVariable weight_;
  at::Tensor mean_;
  at::Tensor scale_;
  at::Tensor count_;
  SumOverRanks sum_;
};

TUTTI_INLINE torch::autograd::variable_list SyncBatchNormBackward::apply(
    torch::autograd::variable_list&& gradients) {
  torch::autograd::variable_list out(3);
  const at::Tensor saved = x_.unpack();
  const at::Tensor weight = weight_.unpack();
  TUTTI_CHECK(!at::GradMode::is_enabled(),
              "SyncBatchNorm: gradients of gradients are asked for, which need collectives of "
              "their own; use BatchNorm where those are wanted");
  // Every rank takes part in the collective, whatever its gradient is.
  const at::Tensor x = saved.to(wide_type(saved));
  const at::Tensor dy =
      gradients[0].defined() ? gradients[0].to(x.scalar_type()) : x.new_zeros(x.sizes());
  const auto dims = all_but_channels(x);
  const at::Tensor centred = x.sub(per_channel(mean_, x));
  const at::Tensor sum_dy = dy.sum(dims).to(at::kDouble);                                 // [C]
  const at::Tensor sum_dy_xhat = dy.mul(centred).sum(dims).to(at::kDouble).mul_(scale_);  // [C]
  if (task_should_compute_output(1) && weight.defined()) {
    out[1] = sum_dy_xhat.to(weight.scalar_type());
  }
  if (task_should_compute_output(2) && weight.defined()) {
    out[2] = sum_dy.to(weight.scalar_type());
  }
  if (task_should_compute_output(0)) {
    const at::Tensor both = at::cat({sum_dy, sum_dy_xhat}).div_(count_);
    sum_(both);
    const std::int64_t c = x.size(1);
    const at::Tensor a = weight.defined() ? weight.to(at::kDouble).mul(scale_) : scale_;
    const at::Tensor b = a.mul(scale_).mul_(both.narrow(0, c, c));
    out[0] = dy.sub(per_channel(both.narrow(0, 0, c), x))
                 .mul_(per_channel(a, x))
                 .addcmul_(centred, per_channel(b, x), -1)
                 .to(saved.scalar_type());
  }
  return out;
}

}  // namespace tutti::nn::detail

namespace tutti::functional {

TUTTI_INLINE SyncBatchNormResult sync_batch_norm(const at::Tensor& x, const at::Tensor& weight,
                                                 const at::Tensor& bias, double eps,
                                                 const SumOverRanks& sum) {
  TUTTI_CHECK(x.dim() >= 2, "SyncBatchNorm: got a tensor ", x.sizes(), ", expected [N, C, ...]");
  const std::int64_t c = x.size(1);
  const std::int64_t own = c == 0 ? 0 : x.numel() / c;
  SyncBatchNormResult result;
  at::Tensor scale;
  at::Tensor count;
  {
    const c10::NoGradGuard no_grad;
    const at::Tensor wide = x.to(nn::detail::wide_type(x));
    const at::TensorOptions doubles = x.options().dtype(at::kDouble);
    // [n, n * mean, n * (variance + mean^2)]: sums in double, which lose nothing of a float.
    at::Tensor message = at::zeros({2 * c + 1}, doubles);
    if (own > 0) {
      auto [variance, mean] =
          at::var_mean(wide, nn::detail::all_but_channels(wide), /*correction=*/0);
      const at::Tensor m = mean.to(at::kDouble);
      message = at::cat({at::full({1}, static_cast<double>(own), doubles), m.mul(own),
                         variance.to(at::kDouble).add_(m.square()).mul_(own)});
    }
    sum(message);
    count = message.narrow(0, 0, 1);
    const at::Tensor mean = message.narrow(0, 1, c).div(count);
    const at::Tensor variance =
        message.narrow(0, 1 + c, c).div(count).sub_(mean.square()).clamp_min_(0);
    // Not where to look at it is to wait for a device.
    TUTTI_CHECK(!x.is_cpu() || count.item<double>() > 1,
                "SyncBatchNorm: expected more than one number per channel over all ranks in "
                "training, got a tensor ",
                x.sizes(), " and no more elsewhere; make the batches larger");
    result.count = count;
    scale = variance.add(eps).rsqrt_();
    result.mean = mean;
    result.variance = variance;
    const at::Tensor a = weight.defined() ? weight.to(at::kDouble).mul(scale) : scale;
    // Centred first, so that a mean far from 0 costs no digits.
    at::Tensor y = wide.sub(nn::detail::per_channel(mean, wide));
    y.mul_(nn::detail::per_channel(a, wide));
    if (bias.defined()) {
      y.add_(nn::detail::per_channel(bias, wide));
    }
    result.output = y.to(x.scalar_type());
  }
  const auto learns = [](const at::Tensor& one) { return one.defined() && one.requires_grad(); };
  if (at::GradMode::is_enabled() && (learns(x) || learns(weight) || learns(bias))) {
    ::tutti::detail::set_gradient(
        result.output,
        new nn::detail::SyncBatchNormBackward(x, weight, bias, result.mean, scale, count, sum));
  }
  return result;
}

}  // namespace tutti::functional
