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

/// Rprop as torch.optim.Rprop: every weight has a step size of its own, which grows by etas[1]
/// while its gradient keeps its sign and shrinks by etas[0] when the sign turns; then the weight
/// waits.
///
///     s = clamp(s * (g * g_before > 0 ? etas[1] : g * g_before < 0 ? etas[0] : 1), step_sizes)
///     p -= sign(g) * s                       g: 0 where the sign has turned
///
/// lr is the first step size; changing it later changes nothing. For whole batches: noise turns
/// signs. Source: Riedmiller and Braun, "A direct adaptive method for faster backpropagation
/// learning", 1993.
struct Rprop {
  double lr = 1e-2;                              ///< the first step size; >= 0
  std::array<double, 2> etas{0.5, 1.2};          ///< shrinks, grows: in (0, 1), above 1
  std::array<double, 2> step_sizes{1e-6, 50.0};  ///< smallest, largest; 0 < smallest
  bool maximize = false;                         ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Rprop>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Rprop>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {

template <>
struct Rule<Rprop> {
  static constexpr std::string_view name = "Rprop";
  static constexpr std::array<std::string_view, 2> buffers{"prev", "step_size"};
  static constexpr bool counts_steps = true;

  static std::size_t buffer_count(const Rprop&) { return 2; }

  static void validate(const Rprop& h) {
    detail::need_learning_rate(name, h.lr);
    TUTTI_CHECK(h.etas[0] > 0.0 && h.etas[0] < 1.0 && h.etas[1] > 1.0, name, ": etas are ",
                h.etas[0], " and ", h.etas[1], ", expected one in (0, 1) and one above 1.");
    TUTTI_CHECK(h.step_sizes[0] > 0.0 && h.step_sizes[0] <= h.step_sizes[1], name,
                ": step_sizes are ", h.step_sizes[0], " and ", h.step_sizes[1],
                ", expected the smallest, more than 0, and the largest.");
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("eta_minus", h.etas[0]);
    f("eta_plus", h.etas[1]);
    f("step_size_min", h.step_sizes[0]);
    f("step_size_max", h.step_sizes[1]);
    f("maximize", h.maximize);
  }

  static void start(const Rprop& h, std::size_t b, const ParameterState& state) {
    if (b == 1) {
      state.buffers[1].fill_(h.lr);
    }
  }
  static detail::RpropNumbers numbers(const Rprop& h, double, const detail::Bucket&) {
    return {{h.maximize, 0.0, 0.0},
            static_cast<float>(h.etas[0]),
            static_cast<float>(h.etas[1]),
            static_cast<float>(h.step_sizes[0]),
            static_cast<float>(h.step_sizes[1])};
  }
  static void update(const Rprop& h, double, const detail::Bucket& b) {
    for (std::size_t i = 0; i < b.parameters.size(); ++i) {
      const at::Tensor& before = b.buffers[0][i];
      const at::Tensor& step = b.buffers[1][i];
      const at::Tensor g = h.maximize ? b.gradients[i].neg() : b.gradients[i];
      const at::Tensor agreement = g.mul(before).sign_();
      const at::Tensor turned = agreement.lt(0);
      agreement.masked_fill_(turned, h.etas[0]).masked_fill_(agreement.gt(h.etas[0]), h.etas[1]);
      agreement.masked_fill_(agreement.eq(0), 1.0);
      step.mul_(agreement).clamp_(h.step_sizes[0], h.step_sizes[1]);
      before.copy_(g).masked_fill_(turned, 0.0);
      b.parameters[i].addcmul_(before.sign(), step, -1.0);
    }
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Rprop>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Rprop);
#endif

}  // namespace tutti
