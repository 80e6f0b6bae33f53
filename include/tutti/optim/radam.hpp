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
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// RAdam as torch.optim.RAdam: Adam whose first steps, in which the average of squares says little,
/// are steps of momentum alone. At step t
///
///     g += weight_decay * p
///     m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
///     p -= lr / (1 - beta1^t) * m * (rho_t > 5 ? r_t * sqrt(1 - beta2^t) / (sqrt(v) + eps) : 1)
///
/// Source: Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR 2020.
struct RAdam {
  double lr = 1e-3;                         ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1)
  double eps = 1e-8;                        ///< >= 0
  double weight_decay = 0;                  ///< >= 0; joins the gradient
  bool decoupled_weight_decay = false;      ///< p *= 1 - lr * weight_decay instead
  bool maximize = false;                    ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = RAdam>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = RAdam>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<RAdam> {
  static constexpr std::string_view name = "RAdam";
  static constexpr std::array<std::string_view, 2> buffers{"exp_avg", "exp_avg_sq"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const RAdam&) { return 2; }

  static void validate(const RAdam& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_betas(name, h.betas);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("beta1", h.betas[0]);
    f("beta2", h.betas[1]);
    f("eps", h.eps);
    f("weight_decay", h.weight_decay);
    f("decoupled_weight_decay", h.decoupled_weight_decay);
    f("maximize", h.maximize);
  }

  // What the momentum is multiplied by, and whether it is divided by the root of the squares.
  struct Rate {
    double step;
    bool rectified;
  };
  static Rate rate(const RAdam& h, const detail::Bucket& b) {
    const auto t = static_cast<double>(b.step);
    const double power = std::pow(h.betas[1], t);
    const double longest = 2 / (1 - h.betas[1]) - 1;
    const double length = longest - 2 * t * power / (1 - power);
    const double step = -h.lr / (1 - std::pow(h.betas[0], t));
    if (length <= 5) {
      return {step, false};
    }
    const double rectification =
        std::sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
    return {step * rectification * std::sqrt(1 - power), true};
  }
  static double coupled(const RAdam& h) { return h.decoupled_weight_decay ? 0.0 : h.weight_decay; }
  static double decoupled(const RAdam& h) { return h.lr * (h.weight_decay - coupled(h)); }

  static detail::RAdamNumbers numbers(const RAdam& h, double, const detail::Bucket& b) {
    const Rate now = rate(h, b);
    return {{h.maximize, coupled(h), decoupled(h)},
            detail::Lerp(1 - h.betas[0]),
            static_cast<float>(h.betas[1]),
            static_cast<float>(1 - h.betas[1]),
            static_cast<float>(h.eps),
            static_cast<float>(now.step),
            now.rectified};
  }
  static void update(const RAdam& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, coupled(h));
    detail::decay_weights(b, decoupled(h));
    detail::lerp_(b.buffers[0], g, 1 - h.betas[0]);
    detail::follow_squares(b.buffers[1], g, h.betas[1]);
    const Rate now = rate(h, b);
    if (now.rectified) {
      const detail::List root = detail::sqrt(b.buffers[1]);
      detail::add_(root, h.eps);
      detail::addcdiv_(b.parameters, b.buffers[0], root, now.step);
    } else {
      detail::add_(b.parameters, b.buffers[0], now.step);
    }
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<RAdam>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(RAdam);
#endif

}  // namespace tutti
