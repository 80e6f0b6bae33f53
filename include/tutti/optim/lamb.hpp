// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/decay.hpp>
#include <tutti/optim/detail/fused.hpp>
#include <tutti/optim/detail/lists.hpp>
#include <tutti/optim/optimizer.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// LAMB, Adam whose steps are as long as the weights of each tensor say: at step t
///
///     m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
///     u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay * p
///     p -= lr * |p| / |u| * u                norms of the whole tensor; 1 where one of them is 0
///
/// Where weight_decay is 0 the ratio is 1, unless always_adapt is set. As timm's `Lamb`, whose
/// clipping by the norm of all gradients (max_grad_norm = 1) is GradientClipping's here. Source:
/// You et al., "Large batch optimization for deep learning", ICLR 2020.
struct LAMB {
  double lr = 1e-3;                         ///< >= 0
  std::array<double, 2> betas{0.9, 0.999};  ///< in [0, 1)
  double eps = 1e-6;                        ///< >= 0
  double weight_decay = 0.01;               ///< >= 0
  bool bias_correction = true;
  bool grad_averaging = true;  ///< else m = beta1 * m + g
  bool trust_clip = false;     ///< the ratio is at most 1 (LAMBC)
  bool always_adapt = false;
  bool decoupled_decay = false;  ///< p *= 1 - lr * weight_decay instead

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = LAMB>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = LAMB>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<LAMB> {
  static constexpr std::string_view name = "LAMB";
  static constexpr std::array<std::string_view, 2> buffers{"exp_avg", "exp_avg_sq"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const LAMB&) { return 2; }

  static void validate(const LAMB& h) {
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
    f("bias_correction", h.bias_correction);
    f("grad_averaging", h.grad_averaging);
    f("trust_clip", h.trust_clip);
    f("always_adapt", h.always_adapt);
    f("decoupled_decay", h.decoupled_decay);
  }

  static void update(const LAMB& h, double, const detail::Bucket& bucket) {
    detail::in_parts(bucket, [&](const detail::Bucket& part) { update_part(h, part); });
  }
  static void update_part(const LAMB& h, const detail::Bucket& b) {
    const detail::List update = direction(h, b);
    if (adapts(h)) {
      detail::scale_by_trust(update, b.parameters, update, {.clip = h.trust_clip});
    }
    detail::add_(b.parameters, update, -h.lr);
  }
  static void update_shards(const std::vector<detail::ShardedBucket<LAMB>>& all,
                            const Shards& shards) {
    std::vector<detail::TrustedUpdates> steps;
    for (const auto& [h, initial_lr, b] : all) {
      const detail::List update = direction(h, b);
      const detail::Trust trust{.clip = h.trust_clip};
      steps.push_back({update, b.parameters, update,
                       adapts(h) ? std::optional<detail::Trust>(trust) : std::nullopt});
    }
    detail::scale_by_trust(steps, shards);
    for (std::size_t i = 0; i < all.size(); ++i) {
      detail::add_(all[i].bucket.parameters, steps[i].updates, -all[i].hyper.lr);
    }
  }

  static bool adapts(const LAMB& h) { return h.weight_decay != 0.0 || h.always_adapt; }

  // A step but for its length; the moments move.
  static detail::List direction(const LAMB& h, const detail::Bucket& b) {
    const auto t = static_cast<double>(b.step);
    const double correction1 = h.bias_correction ? 1 - std::pow(h.betas[0], t) : 1.0;
    const double correction2 = h.bias_correction ? 1 - std::pow(h.betas[1], t) : 1.0;
    if (h.grad_averaging) {
      detail::lerp_(b.buffers[0], b.gradients, 1 - h.betas[0]);
    } else {
      detail::mul_(b.buffers[0], h.betas[0]);
      detail::add_(b.buffers[0], b.gradients, 1.0);
    }
    detail::follow_squares(b.buffers[1], b.gradients, h.betas[1]);
    const detail::List root = detail::sqrt(b.buffers[1]);
    detail::div_(root, std::sqrt(correction2));
    detail::add_(root, h.eps);
    detail::List update = detail::div(b.buffers[0], correction1);
    detail::div_(update, root);
    if (h.decoupled_decay) {
      detail::decay_weights(b, h.lr * h.weight_decay);
    } else if (h.weight_decay != 0.0) {
      detail::add_(update, b.parameters, h.weight_decay);
    }
    return update;
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<LAMB>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(LAMB);
#endif

}  // namespace tutti
