// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/detail/decay.hpp>
#include <tutti/optim/detail/fused.hpp>
#include <tutti/optim/detail/lists.hpp>
#include <tutti/optim/optimizer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// Muon for matrices, AdamW for everything else. Of a matrix, of which all but the first dimension
/// are columns,
///
///     m += (1 - momentum) * (g - m);  u = nesterov ? g + momentum * (m - g) : m
///     p *= 1 - lr * weight_decay
///     p -= lr * adjusted * functional::orthogonalize(u)
///
/// adjusted: "original", sqrt(max(1, rows / columns)); "match_rms_adamw", 0.2 * sqrt(max(rows,
/// columns)), with which rates and decay of AdamW fit. A tensor of fewer than two dimensions takes
/// AdamW's steps with the numbers whose names begin with adamw; the schedule of lr moves adamw_lr,
/// too. All of a group with use_muon = false takes AdamW's steps with lr and weight_decay:
/// embeddings and the last layer belong there (optim/groups.hpp). With ns_dtype "auto" matrices are
/// orthogonalized in bfloat16 where that pays, on a GPU and on processors with avx512_bf16, else in
/// float; "bfloat16" is torch.optim.Muon's everywhere. "float32" and "auto" leave doubles doubles.
/// Matrices of a shape go together. Source: Jordan et al., "Muon: an optimizer for hidden layers in
/// neural networks", 2024; Liu et al., "Muon is scalable for LLM training", 2025; torch.optim.Muon,
/// whose defaults these are; those of AdamW are modded-nanogpt's.
struct Muon {
  double lr = 1e-3;           ///< >= 0
  double weight_decay = 0.1;  ///< >= 0; decoupled
  double momentum = 0.95;     ///< in [0, 1)
  bool nesterov = true;
  std::array<double, 3> ns_coefficients{3.4445, -4.7750, 2.0315};
  double eps = 1e-7;                      ///< >= 0; least norm
  std::int64_t ns_steps = 5;              ///< from 1 to 99
  std::string adjust_lr_fn = "original";  ///< or "match_rms_adamw"
  std::string ns_dtype = "auto";          ///< or "bfloat16", "float32"
  bool use_muon = true;                   ///< of a group: false, all of it takes AdamW's steps
  double adamw_lr = 3e-4;                 ///< >= 0
  std::array<double, 2> adamw_betas{0.9, 0.95};  ///< in [0, 1)
  double adamw_eps = 1e-10;                      ///< >= 0
  double adamw_weight_decay = 0;                 ///< >= 0; decoupled

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Muon>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Muon>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace functional {

/// The nearest matrix with orthonormal rows or columns, roughly: Newton-Schulz iterations of a
/// quintic polynomial bring all singular values to between about 0.5 and 1.5.
///
/// x: [..., rows, columns], floating. coefficients: of x, x^3 and x^5. eps: least norm that x is
/// divided by. Returns x's shape, type and device.
at::Tensor orthogonalize(const at::Tensor& x, std::int64_t steps = 5,
                         const std::array<double, 3>& coefficients = {3.4445, -4.7750, 2.0315},
                         double eps = 1e-7);

}  // namespace functional

namespace optim {
namespace detail {

/// shards: null, the parameters are whole.
void muon_step(const Muon& h, const Bucket& b, const Shards* shards = nullptr);

}  // namespace detail

template <>
struct Rule<Muon> {
  static constexpr std::string_view name = "Muon";
  static constexpr std::array<std::string_view, 3> buffers{"exp_avg", "exp_avg_sq",
                                                           "momentum_buffer"};
  static constexpr bool counts_steps = true;

  static void validate(const Muon& h) {
    detail::need_learning_rate(name, h.lr);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
    detail::need_at_least_zero(name, "eps", h.eps);
    TUTTI_CHECK(h.momentum >= 0.0 && h.momentum < 1.0, name, ": momentum is ", h.momentum,
                ", expected a number in [0, 1).");
    TUTTI_CHECK(h.ns_steps >= 1 && h.ns_steps < 100, name, ": ns_steps is ", h.ns_steps,
                ", expected a number from 1 to 99.");
    TUTTI_CHECK(h.adjust_lr_fn == "original" || h.adjust_lr_fn == "match_rms_adamw", name,
                ": adjust_lr_fn is \"", h.adjust_lr_fn,
                "\", expected \"original\" or \"match_rms_adamw\".");
    TUTTI_CHECK(h.ns_dtype == "auto" || h.ns_dtype == "bfloat16" || h.ns_dtype == "float32", name,
                ": ns_dtype is \"", h.ns_dtype,
                "\", expected \"auto\", \"bfloat16\" or \"float32\".");
    Rule<AdamW>::validate(adamw(h, h.lr));
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("weight_decay", h.weight_decay);
    f("momentum", h.momentum);
    f("nesterov", h.nesterov);
    f("ns_coefficient0", h.ns_coefficients[0]);
    f("ns_coefficient1", h.ns_coefficients[1]);
    f("ns_coefficient2", h.ns_coefficients[2]);
    f("eps", h.eps);
    f("ns_steps", h.ns_steps);
    f("adjust_lr_fn", h.adjust_lr_fn);
    f("ns_dtype", h.ns_dtype);
    f("use_muon", h.use_muon);
    f("adamw_lr", h.adamw_lr);
    f("adamw_beta1", h.adamw_betas[0]);
    f("adamw_beta2", h.adamw_betas[1]);
    f("adamw_eps", h.adamw_eps);
    f("adamw_weight_decay", h.adamw_weight_decay);
  }

  static constexpr unsigned of_adamw = 3;

  static unsigned buffer_mask(const Muon& h, const at::Tensor& parameter) {
    return h.use_muon && parameter.dim() > 1 ? 4U : of_adamw;
  }
  static bool has_loops(const detail::Bucket& bucket) { return bucket.mask == of_adamw; }

  static AdamW adamw(const Muon& h, double initial_lr) {
    if (!h.use_muon) {
      return {
          .lr = h.lr, .betas = h.adamw_betas, .eps = h.adamw_eps, .weight_decay = h.weight_decay};
    }
    const double part = initial_lr == 0.0 ? 1.0 : h.lr / initial_lr;
    return {.lr = h.adamw_lr * part,
            .betas = h.adamw_betas,
            .eps = h.adamw_eps,
            .weight_decay = h.adamw_weight_decay};
  }
  static detail::AdamNumbers numbers(const Muon& h, double initial_lr, const detail::Bucket& b) {
    return Rule<AdamW>::numbers(adamw(h, initial_lr), 0.0, b);
  }
  static void update(const Muon& h, double initial_lr, const detail::Bucket& b) {
    if (b.mask == of_adamw) {
      Rule<AdamW>::update(adamw(h, initial_lr), 0.0, b);
    } else {
      detail::muon_step(h, b);
    }
  }
  static void update_shards(const std::vector<detail::ShardedBucket<Muon>>& all,
                            const Shards& shards) {
    for (const auto& [h, initial_lr, b] : all) {
      if (b.mask == of_adamw) {
        Rule<AdamW>::update(adamw(h, initial_lr), 0.0, b);
      } else {
        detail::muon_step(h, b, &shards);
      }
    }
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Muon>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Muon);
#endif

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/optim/muon.inl.hpp>
#endif
