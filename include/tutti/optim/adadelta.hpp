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

/// Adadelta as torch.optim.Adadelta:
///
///     g += weight_decay * p
///     v = rho * v + (1 - rho) * g^2
///     d = sqrt(u + eps) / sqrt(v + eps) * g;  u = rho * u + (1 - rho) * d^2
///     p -= lr * d
///
/// Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012.
struct Adadelta {
  double lr = 1.0;          ///< >= 0
  double rho = 0.9;         ///< weight of the averages; in [0, 1]
  double eps = 1e-6;        ///< >= 0
  double weight_decay = 0;  ///< >= 0; joins the gradient
  bool maximize = false;    ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Adadelta>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Adadelta>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<Adadelta> {
  static constexpr std::string_view name = "Adadelta";
  static constexpr std::array<std::string_view, 2> buffers{"square_avg", "acc_delta"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const Adadelta&) { return 2; }

  static void validate(const Adadelta& h) {
    detail::need_learning_rate(name, h.lr);
    TUTTI_CHECK(h.rho >= 0.0 && h.rho <= 1.0, name, ": rho is ", h.rho,
                ", expected a number in [0, 1].");
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("rho", h.rho);
    f("eps", h.eps);
    f("weight_decay", h.weight_decay);
    f("maximize", h.maximize);
  }

  static detail::AdadeltaNumbers numbers(const Adadelta& h, double, const detail::Bucket&) {
    return {{h.maximize, h.weight_decay, 0.0},
            static_cast<float>(h.rho),
            static_cast<float>(1 - h.rho),
            static_cast<float>(h.eps),
            static_cast<float>(-h.lr)};
  }
  static void update(const Adadelta& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, h.weight_decay);
    detail::follow_squares(b.buffers[0], g, h.rho);
    const detail::List root = detail::add(b.buffers[0], h.eps);
    detail::sqrt_(root);
    const detail::List delta = detail::add(b.buffers[1], h.eps);
    detail::sqrt_(delta);
    detail::div_(delta, root);
    const detail::List step = detail::mul(delta, g);
    detail::follow_squares(b.buffers[1], step, h.rho);
    detail::add_(b.parameters, step, -h.lr);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Adadelta>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Adadelta);
#endif

}  // namespace tutti
