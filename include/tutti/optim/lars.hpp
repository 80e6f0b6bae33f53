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
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// LARS, SGD whose steps are as long as the weights of each tensor say:
///
///     d = (g + weight_decay * p) * trust_coeff * |p| / (|g| + weight_decay * |p| + eps)
///     buffer = d at first, then momentum * buffer + (1 - dampening) * d       (momentum > 0)
///     p -= lr * (nesterov ? d + momentum * buffer : buffer)                   (or lr * d)
///
/// Norms are of the whole tensor; the ratio is 1 where one of them is 0, and where weight_decay is
/// 0 unless always_adapt is set. As timm's `Lars`. Source: You, Gitman and Ginsburg, "Large batch
/// training of convolutional networks", 2017.
struct LARS {
  double lr = 1.0;      ///< >= 0
  double momentum = 0;  ///< >= 0
  double dampening = 0;
  double weight_decay = 0;     ///< >= 0
  bool nesterov = false;       ///< needs momentum > 0 and dampening 0
  double trust_coeff = 0.001;  ///< >= 0
  double eps = 1e-8;           ///< >= 0
  bool trust_clip = false;     ///< the ratio is at most lr (LARC)
  bool always_adapt = false;

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = LARS>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = LARS>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<LARS> {
  static constexpr std::string_view name = "LARS";
  static constexpr std::array<std::string_view, 1> buffers{"momentum_buffer"};
  static constexpr bool counts_steps = false;

  static std::size_t buffer_count(const LARS& h) { return h.momentum != 0.0 ? 1 : 0; }

  static void validate(const LARS& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_at_least_zero(name, "momentum", h.momentum);
    detail::need_at_least_zero(name, "trust_coeff", h.trust_coeff);
    TUTTI_CHECK_VALUE(!h.nesterov || (h.momentum > 0.0 && h.dampening == 0.0), name,
                      ": nesterov needs momentum > 0 and dampening 0; momentum is ", h.momentum,
                      ", dampening ", h.dampening, ".");
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("momentum", h.momentum);
    f("dampening", h.dampening);
    f("weight_decay", h.weight_decay);
    f("nesterov", h.nesterov);
    f("trust_coeff", h.trust_coeff);
    f("eps", h.eps);
    f("trust_clip", h.trust_clip);
    f("always_adapt", h.always_adapt);
  }

  static void update(const LARS& h, double, const detail::Bucket& bucket) {
    detail::in_parts(bucket, [&](const detail::Bucket& part) { update_part(h, part); });
  }
  static void update_part(const LARS& h, const detail::Bucket& b) {
    detail::List d = direction(h, b);
    if (adapts(h)) {
      detail::scale_by_trust(d, b.parameters, b.gradients, trust(h));
    }
    step_along(std::move(d), h, b);
  }
  static void update_shards(const std::vector<detail::ShardedBucket<LARS>>& all,
                            const Shards& shards) {
    std::vector<detail::TrustedUpdates> steps;
    for (const auto& [h, initial_lr, b] : all) {
      steps.push_back({direction(h, b), b.parameters, b.gradients,
                       adapts(h) ? std::optional<detail::Trust>(trust(h)) : std::nullopt});
    }
    detail::scale_by_trust(steps, shards);
    for (std::size_t i = 0; i < all.size(); ++i) {
      step_along(std::move(steps[i].updates), all[i].hyper, all[i].bucket);
    }
  }

  static bool adapts(const LARS& h) { return h.weight_decay != 0.0 || h.always_adapt; }
  static detail::Trust trust(const LARS& h) {
    return {.coefficient = h.trust_coeff,
            .decay = h.weight_decay,
            .eps = h.eps,
            .clip = h.trust_clip,
            .clip_at = h.lr};
  }

  // A step but for its length.
  static detail::List direction(const LARS& h, const detail::Bucket& b) {
    return adapts(h) ? detail::add(b.gradients, b.parameters, h.weight_decay) : b.gradients;
  }
  static void step_along(detail::List d, const LARS& h, const detail::Bucket& b) {
    if (h.momentum != 0.0) {
      if (b.first) {
        detail::copy_(b.buffers[0], d);
      } else {
        detail::mul_(b.buffers[0], h.momentum);
        detail::add_(b.buffers[0], d, 1 - h.dampening);
      }
      d = h.nesterov ? detail::add(d, b.buffers[0], h.momentum) : b.buffers[0];
    }
    detail::add_(b.parameters, d, -h.lr);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<LARS>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(LARS);
#endif

}  // namespace tutti
