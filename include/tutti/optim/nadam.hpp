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
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// NAdam as torch.optim.NAdam: at step t, with mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2)
///
///     g += weight_decay * p
///     m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
///     d = lr * ((1 - mu_t) / (1 - mu_1 ... mu_t) * g + mu_(t+1) / (1 - mu_1 ... mu_(t+1)) * m)
///     p -= d / (sqrt(v / (1 - beta2^t)) + eps)
///
/// Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016 workshop.
struct NAdam {
  double lr = 2e-3;                         ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1)
  double eps = 1e-8;                        ///< >= 0
  double weight_decay = 0;                  ///< >= 0; joins the gradient
  double momentum_decay = 4e-3;             ///< >= 0
  bool decoupled_weight_decay = false;      ///< p *= 1 - lr * weight_decay instead
  bool maximize = false;                    ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = NAdam>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = NAdam>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<NAdam> {
  static constexpr std::string_view name = "NAdam";
  static constexpr std::array<std::string_view, 2> buffers{"exp_avg", "exp_avg_sq"};
  static constexpr std::array<std::string_view, 1> scalars{"mu_product"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const NAdam&) { return 2; }

  static void validate(const NAdam& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_betas(name, h.betas);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "momentum_decay", h.momentum_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("beta1", h.betas[0]);
    f("beta2", h.betas[1]);
    f("eps", h.eps);
    f("weight_decay", h.weight_decay);
    f("momentum_decay", h.momentum_decay);
    f("decoupled_weight_decay", h.decoupled_weight_decay);
    f("maximize", h.maximize);
  }

  static std::array<double, 2> first_scalars(const NAdam&) { return {1.0, 0.0}; }
  static void count(const NAdam& h, detail::Bucket& b) { b.scalars[0] *= momentum(h, b.step); }

  static double momentum(const NAdam& h, std::int64_t step) {
    const auto t = static_cast<double>(step);
    return h.betas[0] * (1 - 0.5 * std::pow(0.96, t * h.momentum_decay));
  }
  static double correction2(const NAdam& h, const detail::Bucket& b) {
    return 1 - std::pow(h.betas[1], static_cast<double>(b.step));
  }
  // What the gradient and the momentum are multiplied by.
  static std::array<double, 2> rates(const NAdam& h, const detail::Bucket& b) {
    const double now = momentum(h, b.step);
    const double next = momentum(h, b.step + 1);
    const double product = b.scalars[0] * now;
    return {-h.lr * (1 - now) / (1 - product), -h.lr * next / (1 - product * next)};
  }
  static double coupled(const NAdam& h) { return h.decoupled_weight_decay ? 0.0 : h.weight_decay; }
  static double decoupled(const NAdam& h) { return h.lr * (h.weight_decay - coupled(h)); }

  static detail::NAdamNumbers numbers(const NAdam& h, double, const detail::Bucket& b) {
    const std::array<double, 2> steps = rates(h, b);
    return {{h.maximize, coupled(h), decoupled(h)}, detail::Lerp(1 - h.betas[0]),
            static_cast<float>(h.betas[1]),         static_cast<float>(1 - h.betas[1]),
            static_cast<float>(correction2(h, b)),  static_cast<float>(h.eps),
            static_cast<float>(steps[0]),           static_cast<float>(steps[1])};
  }
  static void update(const NAdam& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, coupled(h));
    detail::decay_weights(b, decoupled(h));
    detail::lerp_(b.buffers[0], g, 1 - h.betas[0]);
    detail::follow_squares(b.buffers[1], g, h.betas[1]);
    const detail::List root = detail::div(b.buffers[1], correction2(h, b));
    detail::sqrt_(root);
    detail::add_(root, h.eps);
    const std::array<double, 2> steps = rates(h, b);
    detail::addcdiv_(b.parameters, g, root, steps[0]);
    detail::addcdiv_(b.parameters, b.buffers[0], root, steps[1]);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<NAdam>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(NAdam);
#endif

}  // namespace tutti
