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

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// Averaged SGD as torch.optim.ASGD: at step t
///
///     g += weight_decay * p
///     p = (1 - lambd * eta) * p - eta * g
///     ax += mu * (p - ax)                    ax: the average, mu 1 / max(1, t - t0), 1 at first
///     eta = lr / (1 + lambd * lr * t)^alpha  for the next step; lr at first
///
/// The average is in the optimizer's state, `state_of(parameter)->buffers[0]`, as in PyTorch.
/// Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
struct ASGD {
  double lr = 1e-2;         ///< >= 0
  double lambd = 1e-4;      ///< decay of the weights, with the rate; >= 0
  double alpha = 0.75;      ///< power by which the rate falls; >= 0
  double t0 = 1e6;          ///< the step at which averaging begins
  double weight_decay = 0;  ///< >= 0; joins the gradient
  bool maximize = false;    ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = ASGD>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = ASGD>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<ASGD> {
  static constexpr std::string_view name = "ASGD";
  static constexpr std::array<std::string_view, 1> buffers{"ax"};
  static constexpr std::array<std::string_view, 2> scalars{"eta", "mu"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const ASGD&) { return 1; }

  static void validate(const ASGD& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_at_least_zero(name, "lambd", h.lambd);
    detail::need_at_least_zero(name, "alpha", h.alpha);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("lambd", h.lambd);
    f("alpha", h.alpha);
    f("t0", h.t0);
    f("weight_decay", h.weight_decay);
    f("maximize", h.maximize);
  }

  static std::array<double, 2> first_scalars(const ASGD& h) { return {h.lr, 1.0}; }
  static void count(const ASGD& h, detail::Bucket& b) {
    const auto t = static_cast<double>(b.step);
    b.scalars = {h.lr / std::pow(1 + h.lambd * h.lr * t, h.alpha), 1 / std::max(1.0, t - h.t0)};
  }

  static detail::ASGDNumbers numbers(const ASGD& h, double, const detail::Bucket& b) {
    const auto [eta, mu] = b.scalars;
    return {{h.maximize, h.weight_decay, h.lambd * eta},
            static_cast<float>(-eta),
            detail::Lerp(mu),
            mu != 1.0};
  }
  static void update(const ASGD& h, double, const detail::Bucket& b) {
    const auto [eta, mu] = b.scalars;
    const detail::List g = detail::directions(b, h.maximize, h.weight_decay);
    detail::decay_weights(b, h.lambd * eta);
    detail::add_(b.parameters, g, -eta);
    if (mu == 1.0) {
      detail::copy_(b.buffers[0], b.parameters);
    } else {
      detail::lerp_(b.buffers[0], b.parameters, mu);
    }
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<ASGD>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(ASGD);
#endif

}  // namespace tutti
