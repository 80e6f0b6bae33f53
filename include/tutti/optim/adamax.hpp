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

/// Adamax as torch.optim.Adamax: at step t
///
///     g += weight_decay * p
///     m = beta1 * m + (1 - beta1) * g;  u = max(beta2 * u, |g| + eps)
///     p -= lr / (1 - beta1^t) * m / u
///
/// Source: Kingma and Ba, "Adam", ICLR 2015, section 7.1.
struct Adamax {
  double lr = 2e-3;                         ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1)
  double eps = 1e-8;                        ///< >= 0
  double weight_decay = 0;                  ///< >= 0; joins the gradient
  bool maximize = false;                    ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Adamax>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Adamax>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<Adamax> {
  static constexpr std::string_view name = "Adamax";
  static constexpr std::array<std::string_view, 2> buffers{"exp_avg", "exp_inf"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const Adamax&) { return 2; }

  static void validate(const Adamax& h) {
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
    f("maximize", h.maximize);
  }

  static double rate(const Adamax& h, const detail::Bucket& b) {
    return h.lr / (1 - std::pow(h.betas[0], static_cast<double>(b.step)));
  }
  static detail::AdamaxNumbers numbers(const Adamax& h, double, const detail::Bucket& b) {
    return {{h.maximize, h.weight_decay, 0.0},
            detail::Lerp(1 - h.betas[0]),
            static_cast<float>(h.betas[1]),
            static_cast<float>(h.eps),
            static_cast<float>(-rate(h, b))};
  }
  static void update(const Adamax& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, h.weight_decay);
    detail::lerp_(b.buffers[0], g, 1 - h.betas[0]);
    const detail::List size = detail::abs(g);
    detail::add_(size, h.eps);
    detail::mul_(b.buffers[1], h.betas[1]);
    detail::maximum_(b.buffers[1], size);
    detail::addcdiv_(b.parameters, b.buffers[0], b.buffers[1], -rate(h, b));
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Adamax>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Adamax);
#endif

}  // namespace tutti
