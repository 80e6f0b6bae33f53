// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/detail/parameter_view.hpp>

#include <cmath>
#include <cstddef>

/// What the loops of the optimizers that LibTorch has no fused kernel for read.
namespace tutti::optim::detail {

/// The part of the way from a to b: a + weight * (b - a), from the nearer end as LibTorch's lerp.
struct Lerp {
  Lerp() = default;
  explicit Lerp(double weight)
      : factor(static_cast<float>(weight < 0.5 ? weight : weight - 1)), from_a(weight < 0.5) {}
  float factor = 0;
  bool from_a = true;
};

/// What every rule begins with: the gradient turned and joined by coupled weight decay, and the
/// weight decayed.
struct Beginning {
  Beginning() = default;
  Beginning(bool maximize, double coupled_decay, double decoupled_part)
      : sign(maximize ? -1.0F : 1.0F),
        coupled(static_cast<float>(coupled_decay)),
        keep(static_cast<float>(1 - decoupled_part)) {}
  float sign = 1;
  float coupled = 0;
  float keep = 1;
};

struct AdagradNumbers : Beginning {
  static constexpr std::size_t buffers = 1;
  float step;  ///< minus the decayed learning rate
  float eps;
};

struct RMSpropNumbers : Beginning {
  static constexpr std::size_t buffers = 3;  ///< square_avg, momentum_buffer, grad_avg
  float alpha;
  float rest;  ///< 1 - alpha
  Lerp centre;
  float momentum;
  float eps;
  float step;  ///< -lr
};

struct AdadeltaNumbers : Beginning {
  static constexpr std::size_t buffers = 2;  ///< square_avg, acc_delta
  float rho;
  float rest;  ///< 1 - rho
  float eps;
  float step;  ///< -lr
};

struct AdamaxNumbers : Beginning {
  static constexpr std::size_t buffers = 2;  ///< exp_avg, exp_inf
  Lerp first;
  float beta2;
  float eps;
  float step;  ///< -lr / (1 - beta1^t)
};

struct NAdamNumbers : Beginning {
  static constexpr std::size_t buffers = 2;  ///< exp_avg, exp_avg_sq
  Lerp first;
  float beta2;
  float rest2;  ///< 1 - beta2
  float correction2;
  float eps;
  float gradient_step;
  float momentum_step;
};

struct RAdamNumbers : Beginning {
  static constexpr std::size_t buffers = 2;  ///< exp_avg, exp_avg_sq
  Lerp first;
  float beta2;
  float rest2;  ///< 1 - beta2
  float eps;
  float step;      ///< times the momentum
  bool rectified;  ///< divide by the root of the squares
};

struct ASGDNumbers : Beginning {
  static constexpr std::size_t buffers = 1;  ///< ax
  float step;                                ///< -eta
  Lerp average;
  bool averages;  ///< else ax is the weight
};

struct RpropNumbers : Beginning {
  static constexpr std::size_t buffers = 2;  ///< prev, step_size
  float eta_minus;
  float eta_plus;
  float smallest;
  float largest;
};

struct LionNumbers : Beginning {
  static constexpr std::size_t buffers = 1;  ///< exp_avg
  Lerp update;
  Lerp first;
  float step;  ///< -lr
};

/// Schedule-free SGD and AdamW.
struct ScheduleFreeNumbers : Beginning {
  static constexpr std::size_t buffers = 2;  ///< z, exp_avg_sq
  bool adam;
  float beta2 = 0;
  float rest2 = 0;  ///< 1 - beta2
  float correction2 = 1;
  float eps = 0;
  float decay;   ///< joins the direction
  Lerp average;  ///< of y towards z
  float y_step;
  float z_step;  ///< -lr
};

}  // namespace tutti::optim::detail
