// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/decay.hpp>
#include <tutti/optim/detail/fused.hpp>
#include <tutti/optim/optimizer.hpp>

#include <array>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <torch/optim/optimizer.h>

namespace tutti {

/// Adam as torch.optim.Adam: at step t
///
///     g += weight_decay * p
///     m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
///     p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///
/// With amsgrad the largest v so far takes v's place in the last line.
/// Source: Kingma and Ba, "Adam", ICLR 2015; Reddi et al., "On the convergence of Adam and beyond",
/// ICLR 2018.
struct Adam {
  double lr = 1e-3;                         ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1)
  double eps = 1e-8;                        ///< >= 0
  double weight_decay = 0.0;                ///< >= 0
  bool amsgrad = false;
  bool maximize = false;  ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Adam>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return std::make_shared<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Adam>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

/// Adam whose weight decay is `p *= 1 - lr * weight_decay`, ahead of the rest, as
/// torch.optim.AdamW. Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR
/// 2019.
struct AdamW {
  double lr = 1e-3;                         ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1)
  double eps = 1e-8;                        ///< >= 0
  double weight_decay = 1e-2;               ///< >= 0
  bool amsgrad = false;
  bool maximize = false;  ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = AdamW>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return std::make_shared<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = AdamW>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

/// Adam whose weight decay follows the learning rate's schedule, not its magnitude:
/// `p *= 1 - (lr / initial_lr) * weight_decay`, ahead of the rest.
///
/// initial_lr is the learning rate at construction; where it is 0 the factor is 1. So weight_decay
/// is the part by which weights shrink in a step: good values are about lr times those of AdamW,
/// and 1e-3 or more is warned about. Source: Loshchilov and Hutter, "Decoupled weight decay
/// regularization", ICLR 2019, algorithm 2; MosaicML Composer, `composer.optim.DecoupledAdamW`.
struct DecoupledAdamW {
  double lr = 1e-3;                        ///< >= 0
  std::array<double, 2> betas{0.9, 0.95};  ///< in [0, 1)
  double eps = 1e-8;                       ///< >= 0
  double weight_decay = 1e-5;              ///< >= 0
  bool amsgrad = false;

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = DecoupledAdamW>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return std::make_shared<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = DecoupledAdamW>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {
namespace detail {

template <class Hyper>
struct AdamRule {
  static constexpr std::array<std::string_view, 3> buffers{"exp_avg", "exp_avg_sq",
                                                           "max_exp_avg_sq"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const Hyper& h) { return h.amsgrad ? 3 : 2; }

  static void validate(const Hyper& h) {
    constexpr std::string_view name = Rule<Hyper>::name;
    need_learning_rate(name, h.lr);
    need_at_least_zero(name, "eps", h.eps);
    need_at_least_zero(name, "weight_decay", h.weight_decay);
    for (const double beta : h.betas) {
      TUTTI_CHECK_VALUE(beta >= 0.0 && beta < 1.0, name, ": betas are ", h.betas[0], " and ",
                        h.betas[1], ", expected two in [0, 1).");
    }
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("beta1", h.betas[0]);
    f("beta2", h.betas[1]);
    f("eps", h.eps);
    f("weight_decay", h.weight_decay);
    f("amsgrad", h.amsgrad);
    if constexpr (requires { h.maximize; }) {
      f("maximize", h.maximize);
    }
  }

  static void write_step(const Bucket& b) {
    const at::Tensor& step = b.steps.front();
    if (b.device.is_cpu()) {
      *step.mutable_data_ptr<float>() = static_cast<float>(b.step);
    } else {
      step.fill_(b.step);
    }
  }

  // What the last step took off the parameter; the decayed part is that of the parameter now.
  static at::Tensor update_of(const GroupOptions<Hyper>& options, const ParameterState& state) {
    const Hyper& h = options.hyper;
    const auto t = static_cast<double>(state.step);
    const double c1 = 1.0 - std::pow(h.betas[0], t);
    const double c2 = 1.0 - std::pow(h.betas[1], t);
    const at::Tensor& squares = state.buffers[h.amsgrad ? 2 : 1];
    const at::Tensor denominator = squares.sqrt().div(std::sqrt(c2)).add(h.eps);
    const at::Tensor step = state.buffers[0].div(denominator).mul(h.lr / c1);
    return step.sub(state.parameter.detach(), Rule<Hyper>::decay_of(options));
  }

  // The same numbers as in LibTorch's kernel, rounded where it rounds them.
  static AdamNumbers numbers(const Hyper& h, double coupled, double decoupled, bool maximize,
                             std::int64_t step) {
    const auto t = static_cast<double>(static_cast<float>(step));
    const auto lerp = static_cast<float>(1 - h.betas[0]);
    return {.sign = maximize ? -1.0F : 1.0F,
            .coupled = static_cast<float>(coupled),
            .keep = static_cast<float>(1 - h.lr * decoupled),
            .lerp = lerp < 0.5F ? lerp : lerp - 1,
            .beta2 = static_cast<float>(h.betas[1]),
            .rest2 = static_cast<float>(1 - h.betas[1]),
            .root = static_cast<float>(std::sqrt(1 - std::pow(h.betas[1], t))),
            .eps = static_cast<float>(h.eps),
            .step = static_cast<float>(-h.lr / (1 - std::pow(h.betas[0], t)))};
  }

  // Kernel: _fused_adam_ adds weight_decay * p to the gradient, _fused_adamw_ shrinks p by
  // lr * weight_decay.
  template <class Kernel>
  static void descend(const Hyper& h, double weight_decay, bool maximize, const Bucket& b) {
    write_step(b);
    Kernel::call(b.parameters, b.gradients, b.buffers[0], b.buffers[1], b.buffers[2], b.steps, h.lr,
                 h.betas[0], h.betas[1], weight_decay, h.eps, h.amsgrad, maximize, std::nullopt,
                 std::nullopt);
  }
};

}  // namespace detail

template <>
struct Rule<Adam> : detail::AdamRule<Adam> {
  static constexpr std::string_view name = "Adam";

  static double decay_of(const GroupOptions<Adam>&) { return 0.0; }

  static void update(const Adam& h, double, const detail::Bucket& bucket) {
    descend<at::_ops::_fused_adam_>(h, h.weight_decay, h.maximize, bucket);
  }
  static detail::AdamNumbers numbers(const Adam& h, double, const detail::Bucket& bucket) {
    return AdamRule::numbers(h, h.weight_decay, 0.0, h.maximize, bucket.step);
  }
};

template <>
struct Rule<AdamW> : detail::AdamRule<AdamW> {
  static constexpr std::string_view name = "AdamW";

  static double decay_of(const GroupOptions<AdamW>& o) { return o.hyper.lr * o.hyper.weight_decay; }

  static void update(const AdamW& h, double, const detail::Bucket& bucket) {
    descend<at::_ops::_fused_adamw_>(h, h.weight_decay, h.maximize, bucket);
  }
  static detail::AdamNumbers numbers(const AdamW& h, double, const detail::Bucket& bucket) {
    return AdamRule::numbers(h, 0.0, h.weight_decay, h.maximize, bucket.step);
  }
};

template <>
struct Rule<DecoupledAdamW> : detail::AdamRule<DecoupledAdamW> {
  static constexpr std::string_view name = "DecoupledAdamW";

  static double decay_of(const GroupOptions<DecoupledAdamW>& o) {
    return detail::decay(o.hyper.lr, o.initial_lr, o.hyper.weight_decay);
  }

  static void validate(const DecoupledAdamW& h) {
    detail::AdamRule<DecoupledAdamW>::validate(h);
    detail::warn_of_large_decay(name, h.weight_decay);
  }
  static void update(const DecoupledAdamW& h, double initial_lr, const detail::Bucket& bucket) {
    const double part = detail::decay(h.lr, initial_lr, h.weight_decay);
    if (h.lr == 0.0) {
      detail::shrink(bucket, part);
    }
    descend<at::_ops::_fused_adamw_>(h, h.lr == 0.0 ? 0.0 : part / h.lr, false, bucket);
  }
  static detail::AdamNumbers numbers(const DecoupledAdamW& h, double initial_lr,
                                     const detail::Bucket& bucket) {
    const double part = detail::decay(h.lr, initial_lr, h.weight_decay);
    auto out = AdamRule::numbers(h, 0.0, h.lr == 0.0 ? 0.0 : part / h.lr, false, bucket.step);
    out.shrink = h.lr == 0.0 ? static_cast<float>(-part) : 0.0F;
    return out;
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Adam>;
TUTTI_TEMPLATE class Fused<AdamW>;
TUTTI_TEMPLATE class Fused<DecoupledAdamW>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<Adam>> Adam::build<Adam>(
    std::vector<torch::optim::OptimizerParamGroup>) const;
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<Adam>> Adam::build<Adam>(std::vector<at::Tensor>) const;
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Adam);
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<AdamW>> AdamW::build<AdamW>(
    std::vector<torch::optim::OptimizerParamGroup>) const;
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<AdamW>> AdamW::build<AdamW>(
    std::vector<at::Tensor>) const;
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(AdamW);
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<DecoupledAdamW>> DecoupledAdamW::build<DecoupledAdamW>(
    std::vector<torch::optim::OptimizerParamGroup>) const;
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<DecoupledAdamW>> DecoupledAdamW::build<DecoupledAdamW>(
    std::vector<at::Tensor>) const;
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(DecoupledAdamW);
#endif

}  // namespace tutti
