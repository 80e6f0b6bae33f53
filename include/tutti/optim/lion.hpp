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

/// Lion, which steps by the sign of a momentum:
///
///     p *= 1 - lr * weight_decay
///     p -= lr * sign(beta1 * m + (1 - beta1) * g)
///     m = beta2 * m + (1 - beta2) * g
///
/// Good rates are 3 to 10 times smaller than AdamW's, and weight decay is as much larger. Source:
/// Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023; timm, `Lion`.
struct Lion {
  double lr = 1e-4;                        ///< >= 0
  std::array<double, 2> betas{0.9, 0.99};  ///< in [0, 1)
  double weight_decay = 0;                 ///< >= 0; decoupled
  bool maximize = false;                   ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Lion>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Lion>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<Lion> {
  static constexpr std::string_view name = "Lion";
  static constexpr std::array<std::string_view, 1> buffers{"exp_avg"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const Lion&) { return 1; }

  static void validate(const Lion& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_betas(name, h.betas);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("beta1", h.betas[0]);
    f("beta2", h.betas[1]);
    f("weight_decay", h.weight_decay);
    f("maximize", h.maximize);
  }

  static detail::LionNumbers numbers(const Lion& h, double, const detail::Bucket&) {
    return {{h.maximize, 0.0, h.lr * h.weight_decay},
            detail::Lerp(1 - h.betas[0]),
            detail::Lerp(1 - h.betas[1]),
            static_cast<float>(-h.lr)};
  }
  static void update(const Lion& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, 0.0);
    detail::decay_weights(b, h.lr * h.weight_decay);
    const detail::List update = detail::lerp(b.buffers[0], g, 1 - h.betas[0]);
    detail::sign_(update);
    detail::add_(b.parameters, update, -h.lr);
    detail::lerp_(b.buffers[0], g, 1 - h.betas[1]);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Lion>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Lion);
#endif

}  // namespace tutti
