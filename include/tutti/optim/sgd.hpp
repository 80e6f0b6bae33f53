// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/decay.hpp>
#include <tutti/optim/detail/fused.hpp>
#include <tutti/optim/optimizer.hpp>

#include <array>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/_fused_sgd_ops.h>
#include <torch/optim/optimizer.h>

namespace tutti {

/// Stochastic gradient descent, with momentum, as torch.optim.SGD:
///
///     g += weight_decay * p
///     buffer = g at first, then momentum * buffer + (1 - dampening) * g       (momentum > 0)
///     p -= lr * (nesterov ? g + momentum * buffer : buffer)                   (or lr * g)
struct SGD {
  double lr = std::numeric_limits<double>::quiet_NaN();  ///< >= 0; there is no default.
  double momentum = 0.0;                                 ///< >= 0
  double dampening = 0.0;
  double weight_decay = 0.0;  ///< >= 0
  bool nesterov = false;      ///< needs momentum > 0 and dampening 0
  bool maximize = false;      ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = SGD>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = SGD>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

/// SGD whose weight decay follows the learning rate's schedule, not its magnitude:
///
///     p *= 1 - (lr / initial_lr) * weight_decay
///     p -= lr * d              d: as SGD's, from the gradient alone
///
/// initial_lr is the learning rate at construction; where it is 0 the factor is 1. So weight_decay
/// is the part by which weights shrink in a step: good values are about lr times those of SGD, and
/// 1e-3 or more is warned about.
/// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 1;
/// MosaicML Composer, `composer.optim.DecoupledSGDW`.
struct DecoupledSGDW {
  double lr = std::numeric_limits<double>::quiet_NaN();  ///< >= 0; there is no default.
  double momentum = 0.0;                                 ///< >= 0
  double dampening = 0.0;
  double weight_decay = 0.0;  ///< >= 0
  bool nesterov = false;      ///< needs momentum > 0 and dampening 0

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = DecoupledSGDW>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = DecoupledSGDW>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {
namespace detail {

template <class Hyper>
struct SgdRule {
  static constexpr std::array<std::string_view, 1> buffers{"momentum_buffer"};
  static constexpr bool counts_steps = false;

  static std::size_t buffer_count(const Hyper& h) { return h.momentum != 0.0 ? 1 : 0; }

  static void validate(const Hyper& h) {
    constexpr std::string_view name = Rule<Hyper>::name;
    need_learning_rate(name, h.lr);
    need_at_least_zero(name, "momentum", h.momentum);
    need_at_least_zero(name, "weight_decay", h.weight_decay);
    TUTTI_CHECK_VALUE(!h.nesterov || (h.momentum > 0.0 && h.dampening == 0.0), name,
                      ": nesterov needs momentum > 0 and dampening 0; momentum is ", h.momentum,
                      ", dampening ", h.dampening, ".");
  }

  static SgdNumbers numbers(const Hyper& h, double shrunk, double weight_decay, bool maximize,
                            bool first) {
    return {.sign = maximize ? -1.0F : 1.0F,
            .shrink = static_cast<float>(-shrunk),
            .coupled = static_cast<float>(weight_decay),
            .momentum = static_cast<float>(h.momentum),
            .undamped = static_cast<float>(1 - h.dampening),
            .step = static_cast<float>(-h.lr),
            .nesterov = h.nesterov,
            .first = first};
  }

  static void descend(const Hyper& h, double weight_decay, bool maximize, const Bucket& b) {
    if (has_fused_sgd(b)) {
      at::_ops::_fused_sgd_::call(b.parameters, b.gradients, b.buffers[0], weight_decay, h.momentum,
                                  h.lr, h.dampening, h.nesterov, maximize, b.first, std::nullopt,
                                  std::nullopt);
      return;
    }
    for (std::size_t i = 0; i < b.parameters.size(); ++i) {
      at::Tensor g = maximize ? b.gradients[i].neg() : b.gradients[i];
      g = weight_decay != 0.0 ? g.add(b.parameters[i], weight_decay) : g;
      if (h.momentum != 0.0) {
        const at::Tensor& buffer = b.buffers[0][i];
        b.first ? buffer.copy_(g) : buffer.mul_(h.momentum).add_(g, 1.0 - h.dampening);
        g = h.nesterov ? g.add(buffer, h.momentum) : buffer;
      }
      b.parameters[i].add_(g, -h.lr);
    }
  }
};

}  // namespace detail

template <>
struct Rule<SGD> : detail::SgdRule<SGD> {
  static constexpr std::string_view name = "SGD";

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("momentum", h.momentum);
    f("dampening", h.dampening);
    f("weight_decay", h.weight_decay);
    f("nesterov", h.nesterov);
    f("maximize", h.maximize);
  }
  static void update(const SGD& h, double, const detail::Bucket& bucket) {
    descend(h, h.weight_decay, h.maximize, bucket);
  }
  static detail::SgdNumbers numbers(const SGD& h, double, const detail::Bucket& bucket) {
    return SgdRule::numbers(h, 0.0, h.weight_decay, h.maximize, bucket.first);
  }
};

template <>
struct Rule<DecoupledSGDW> : detail::SgdRule<DecoupledSGDW> {
  static constexpr std::string_view name = "DecoupledSGDW";

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("momentum", h.momentum);
    f("dampening", h.dampening);
    f("weight_decay", h.weight_decay);
    f("nesterov", h.nesterov);
  }
  static void validate(const DecoupledSGDW& h) {
    detail::SgdRule<DecoupledSGDW>::validate(h);
    detail::warn_of_large_decay(name, h.weight_decay);
  }
  static void update(const DecoupledSGDW& h, double initial_lr, const detail::Bucket& bucket) {
    detail::shrink(bucket, detail::decay(h.lr, initial_lr, h.weight_decay));
    descend(h, 0.0, false, bucket);
  }
  static detail::SgdNumbers numbers(const DecoupledSGDW& h, double initial_lr,
                                    const detail::Bucket& bucket) {
    const double part = detail::decay(h.lr, initial_lr, h.weight_decay);
    return SgdRule::numbers(h, part, 0.0, false, bucket.first);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<SGD>;
TUTTI_TEMPLATE class Fused<DecoupledSGDW>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<SGD>> SGD::build<SGD>(
    std::vector<torch::optim::OptimizerParamGroup>) const;
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<SGD>> SGD::build<SGD>(std::vector<at::Tensor>) const;
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(SGD);
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<DecoupledSGDW>> DecoupledSGDW::build<DecoupledSGDW>(
    std::vector<torch::optim::OptimizerParamGroup>) const;
TUTTI_TEMPLATE std::shared_ptr<optim::Fused<DecoupledSGDW>> DecoupledSGDW::build<DecoupledSGDW>(
    std::vector<at::Tensor>) const;
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(DecoupledSGDW);
#endif

}  // namespace tutti
