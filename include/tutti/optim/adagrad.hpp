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

/// Adagrad as torch.optim.Adagrad: at step t
///
///     g += weight_decay * p;  sum += g^2
///     p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(sum) + eps)
///
/// Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
/// stochastic optimization", JMLR 2011.
struct Adagrad {
  double lr = 1e-2;                      ///< >= 0
  double lr_decay = 0;                   ///< >= 0
  double weight_decay = 0;               ///< >= 0; joins the gradient
  double initial_accumulator_value = 0;  ///< where the sum begins; >= 0
  double eps = 1e-10;                    ///< >= 0
  bool maximize = false;                 ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Adagrad>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Adagrad>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<Adagrad> {
  static constexpr std::string_view name = "Adagrad";
  static constexpr std::array<std::string_view, 1> buffers{"sum"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const Adagrad&) { return 1; }

  static void validate(const Adagrad& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_at_least_zero(name, "lr_decay", h.lr_decay);
    detail::need_at_least_zero(name, "initial_accumulator_value", h.initial_accumulator_value);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("lr_decay", h.lr_decay);
    f("weight_decay", h.weight_decay);
    f("initial_accumulator_value", h.initial_accumulator_value);
    f("eps", h.eps);
    f("maximize", h.maximize);
  }

  static void start(const Adagrad& h, std::size_t, const ParameterState& state) {
    state.buffers[0].fill_(h.initial_accumulator_value);
  }
  static double rate(const Adagrad& h, const detail::Bucket& b) {
    return h.lr / (1 + static_cast<double>(b.step - 1) * h.lr_decay);
  }
  static detail::AdagradNumbers numbers(const Adagrad& h, double, const detail::Bucket& b) {
    return {{h.maximize, h.weight_decay, 0.0},
            static_cast<float>(-rate(h, b)),
            static_cast<float>(h.eps)};
  }
  static void update(const Adagrad& h, double, const detail::Bucket& b) {
    const detail::List g = detail::directions(b, h.maximize, h.weight_decay);
    detail::addcmul_(b.buffers[0], g, g, 1.0);
    const detail::List root = detail::sqrt(b.buffers[0]);
    detail::add_(root, h.eps);
    detail::addcdiv_(b.parameters, g, root, -rate(h, b));
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Adagrad>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Adagrad);
#endif

}  // namespace tutti
