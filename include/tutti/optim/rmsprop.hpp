// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/decay.hpp>
#include <tutti/optim/detail/elementwise.hpp>
#include <tutti/optim/detail/fused.hpp>
#include <tutti/optim/detail/lists.hpp>
#include <tutti/optim/optimizer.hpp>

#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// RMSprop as torch.optim.RMSprop:
///
///     g += weight_decay * p
///     v = alpha * v + (1 - alpha) * g^2
///     d = g / (sqrt(v) + eps)                with centered g / (sqrt(v - mean(g)^2) + eps)
///     p -= lr * d                            with momentum b = momentum * b + d; p -= lr * b
///
/// Source: Hinton, "Neural networks for machine learning", lecture 6; centered: Graves, "Generating
/// sequences with recurrent neural networks", 2013.
struct RMSprop {
  double lr = 1e-2;         ///< >= 0
  double alpha = 0.99;      ///< weight of the average of squares; in [0, 1)
  double eps = 1e-8;        ///< >= 0
  double weight_decay = 0;  ///< >= 0; joins the gradient
  double momentum = 0;      ///< >= 0
  bool centered = false;    ///< divide by the deviation from the mean gradient
  bool maximize = false;    ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = RMSprop>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = RMSprop>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<RMSprop> {
  static constexpr std::string_view name = "RMSprop";
  static constexpr std::array<std::string_view, 3> buffers{"square_avg", "momentum_buffer",
                                                           "grad_avg"};
  static constexpr bool counts_steps = true;

  static void validate(const RMSprop& h) {
    detail::need_learning_rate(name, h.lr);
    TUTTI_CHECK(h.alpha >= 0.0 && h.alpha < 1.0, name, ": alpha is ", h.alpha,
                ", expected a number in [0, 1).");
    detail::need_at_least_zero(name, "momentum", h.momentum);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("alpha", h.alpha);
    f("eps", h.eps);
    f("weight_decay", h.weight_decay);
    f("momentum", h.momentum);
    f("centered", h.centered);
    f("maximize", h.maximize);
  }

  static unsigned buffer_mask(const RMSprop& h, const at::Tensor&) {
    return 1U | (h.momentum != 0.0 ? 2U : 0U) | (h.centered ? 4U : 0U);
  }
  static detail::RMSpropNumbers numbers(const RMSprop& h, double, const detail::Bucket&) {
    return {{h.maximize, h.weight_decay, 0.0}, static_cast<float>(h.alpha),
            static_cast<float>(1 - h.alpha),   detail::Lerp(1 - h.alpha),
            static_cast<float>(h.momentum),    static_cast<float>(h.eps),
            static_cast<float>(-h.lr)};
  }
  static void update(const RMSprop& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, h.weight_decay);
    const auto& [square, momentum, centre] = b.buffers;
    detail::follow_squares(square, g, h.alpha);
    detail::List root;
    if (h.centered) {
      detail::lerp_(centre, g, 1 - h.alpha);
      root = detail::mul(square, 1.0);
      detail::addcmul_(root, centre, centre, -1.0);
      detail::sqrt_(root);
    } else {
      root = detail::sqrt(square);
    }
    detail::add_(root, h.eps);
    if (h.momentum != 0.0) {
      detail::mul_(momentum, h.momentum);
      detail::addcdiv_(momentum, g, root, 1.0);
      detail::add_(b.parameters, momentum, -h.lr);
    } else {
      detail::addcdiv_(b.parameters, g, root, -h.lr);
    }
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<RMSprop>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(RMSprop);
#endif

}  // namespace tutti
