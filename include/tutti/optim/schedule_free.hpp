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
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// SGD that needs no schedule, as schedulefree.SGDScheduleFree: at step t, with
/// c = t^r * lr_max^weight_lr_power over the sum of these so far,
///
///     g += weight_decay * y
///     y += c * (z - y) - lr * (1 - momentum * (1 - c)) * g;  z -= lr * g
///
///
/// lr_max is the largest rate so far, and during warmup_steps the rate rises from lr / warmup_steps
/// to lr; a schedule is not needed. While it trains the model holds y, at which gradients are
/// taken; a Trainer puts the average x into it for evaluations, predictions and checkpoints
/// (optim/averages.hpp), which hold y in the optimizer's state. Gradients are left as they are.
/// Source: Defazio et al., "The road less scheduled", NeurIPS 2024.
struct ScheduleFreeSGD {
  double lr = 1.0;                ///< >= 0
  double momentum = 0.9;          ///< between 0 and 1
  double weight_decay = 0;        ///< >= 0; of y, joins the direction
  std::int64_t warmup_steps = 0;  ///< >= 0
  double r = 0;                   ///< the average weighs step t by t^r
  double weight_lr_power = 2;     ///< and by lr_max to this power

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = ScheduleFreeSGD>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = ScheduleFreeSGD>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

/// ScheduleFreeSGD whose direction is g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * y, with
/// v = beta2 * v + (1 - beta2) * g^2, and beta1 as its momentum, as schedulefree.AdamWScheduleFree.
struct ScheduleFreeAdamW {
  double lr = 0.0025;                       ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1), the first above 0
  double eps = 1e-8;                        ///< >= 0
  double weight_decay = 0;                  ///< >= 0; of y, joins the direction
  std::int64_t warmup_steps = 0;            ///< >= 0
  double r = 0;                             ///< the average weighs step t by t^r
  double weight_lr_power = 2;               ///< and by lr_max to this power

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = ScheduleFreeAdamW>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = ScheduleFreeAdamW>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

namespace detail {

/// What schedule-free rules share. Derived from by Rule<Hyper>.
template <class Hyper>
struct ScheduleFreeRule {
  static constexpr std::array<std::string_view, 2> scalars{"lr_max", "weight_sum"};
  static constexpr bool counts_steps = true;

  static std::array<double, 2> first_scalars(const Hyper&) { return {-1.0, 0.0}; }
  static void start(const Hyper&, std::size_t b, const ParameterState& state) {
    if (b == 0) {
      state.buffers[0].copy_(state.parameter.detach());
    }
  }

  // x from y and z, since y = beta1 * x + (1 - beta1) * z.
  static void average_into(const Hyper& h, const ParameterState& state) {
    state.parameter.lerp_(state.buffers[0], 1 - 1 / Rule<Hyper>::momentum(h));
  }
  // With z = y that is x, too.
  static void average_from(const ParameterState& state) {
    state.buffers[0].copy_(state.parameter.detach());
  }

  // The rate of this step, the new scalars, and the part of the way that y goes towards z.
  struct Now {
    double lr;
    std::array<double, 2> scalars;
    double average;
  };
  static Now now(const Hyper& h, const Bucket& b) {
    const auto t = static_cast<double>(b.step);
    const auto warmup = static_cast<double>(h.warmup_steps);
    const double lr = h.lr * (t <= warmup ? t / warmup : 1.0);
    const double largest = std::max(lr, b.scalars[0]);
    const double weight = std::pow(t, h.r) * std::pow(largest, h.weight_lr_power);
    const double sum = b.scalars[1] + weight;
    return {lr, {largest, sum}, sum == 0.0 ? 0.0 : weight / sum};
  }
  static void count(const Hyper& h, Bucket& b) { b.scalars = now(h, b).scalars; }

  // y and z take their steps. momentum: beta1.
  static void move(const Now& now, double momentum, const List& direction, const Bucket& b) {
    lerp_(b.parameters, b.buffers[0], now.average);
    add_(b.parameters, direction, now.lr * (momentum * (1 - now.average) - 1));
    add_(b.buffers[0], direction, -now.lr);
  }
  static float y_step(const Now& now, double momentum) {
    return static_cast<float>(now.lr * (momentum * (1 - now.average) - 1));
  }
};

}  // namespace detail

template <>
struct Rule<ScheduleFreeSGD> : detail::ScheduleFreeRule<ScheduleFreeSGD> {
  static constexpr std::string_view name = "ScheduleFreeSGD";
  static constexpr std::array<std::string_view, 1> buffers{"z"};
  static std::size_t buffer_count(const ScheduleFreeSGD&) { return 1; }

  static void validate(const ScheduleFreeSGD& h) {
    detail::need_learning_rate(name, h.lr);
    TUTTI_CHECK(h.momentum > 0.0 && h.momentum < 1.0, name, ": momentum is ", h.momentum,
                ", expected a number between 0 and 1.");
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    TUTTI_CHECK(h.warmup_steps >= 0, name, ": warmup_steps is ", h.warmup_steps,
                ", expected 0 or more.");
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("momentum", h.momentum);
    f("weight_decay", h.weight_decay);
    f("warmup_steps", h.warmup_steps);
    f("r", h.r);
    f("weight_lr_power", h.weight_lr_power);
  }

  static double momentum(const ScheduleFreeSGD& h) { return h.momentum; }

  static detail::ScheduleFreeNumbers numbers(const ScheduleFreeSGD& h, double,
                                             const detail::Bucket& b) {
    const Now step = now(h, b);
    detail::ScheduleFreeNumbers out{};
    out.decay = static_cast<float>(h.weight_decay);
    out.average = detail::Lerp(step.average);
    out.y_step = y_step(step, h.momentum);
    out.z_step = static_cast<float>(-step.lr);
    return out;
  }
  static void update(const ScheduleFreeSGD& h, double, const detail::Bucket& b) {
    move(now(h, b), h.momentum, detail::directions(b, false, h.weight_decay), b);
  }
};

template <>
struct Rule<ScheduleFreeAdamW> : detail::ScheduleFreeRule<ScheduleFreeAdamW> {
  static constexpr std::string_view name = "ScheduleFreeAdamW";
  static constexpr std::array<std::string_view, 2> buffers{"z", "exp_avg_sq"};
  static std::size_t buffer_count(const ScheduleFreeAdamW&) { return 2; }

  static void validate(const ScheduleFreeAdamW& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_betas(name, h.betas);
    TUTTI_CHECK(h.betas[0] > 0.0, name,
                ": betas[0] is 0, expected more, since x follows from y by it.");
    detail::need_at_least_zero(name, "eps", h.eps);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    TUTTI_CHECK(h.warmup_steps >= 0, name, ": warmup_steps is ", h.warmup_steps,
                ", expected 0 or more.");
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("beta1", h.betas[0]);
    f("beta2", h.betas[1]);
    f("eps", h.eps);
    f("weight_decay", h.weight_decay);
    f("warmup_steps", h.warmup_steps);
    f("r", h.r);
    f("weight_lr_power", h.weight_lr_power);
  }

  static double momentum(const ScheduleFreeAdamW& h) { return h.betas[0]; }
  static double correction2(const ScheduleFreeAdamW& h, const detail::Bucket& b) {
    return 1 - std::pow(h.betas[1], static_cast<double>(b.step));
  }

  static detail::ScheduleFreeNumbers numbers(const ScheduleFreeAdamW& h, double,
                                             const detail::Bucket& b) {
    const Now step = now(h, b);
    detail::ScheduleFreeNumbers out{};
    out.adam = true;
    out.beta2 = static_cast<float>(h.betas[1]);
    out.rest2 = static_cast<float>(1 - h.betas[1]);
    out.correction2 = static_cast<float>(correction2(h, b));
    out.eps = static_cast<float>(h.eps);
    out.decay = static_cast<float>(h.weight_decay);
    out.average = detail::Lerp(step.average);
    out.y_step = y_step(step, h.betas[0]);
    out.z_step = static_cast<float>(-step.lr);
    return out;
  }
  static void update(const ScheduleFreeAdamW& h, double, const detail::Bucket& b) {
    detail::follow_squares(b.buffers[1], b.gradients, h.betas[1]);
    const detail::List root = detail::div(b.buffers[1], correction2(h, b));
    detail::sqrt_(root);
    detail::add_(root, h.eps);
    const detail::List direction = detail::mul(b.gradients, 1.0);
    detail::div_(direction, root);
    if (h.weight_decay != 0.0) {
      detail::add_(direction, b.parameters, h.weight_decay);
    }
    move(now(h, b), h.betas[0], direction, b);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<ScheduleFreeSGD>;
TUTTI_TEMPLATE class Fused<ScheduleFreeAdamW>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(ScheduleFreeSGD);
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(ScheduleFreeAdamW);
#endif

}  // namespace tutti
