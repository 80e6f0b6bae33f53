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

#include <ATen/ops/stack_ops.h>
#include <c10/util/accumulate.h>

namespace tutti::functional {

TUTTI_INLINE at::Tensor orthogonalize(const at::Tensor& x, std::int64_t steps,
                                      const std::array<double, 3>& coefficients, double eps) {
  TUTTI_CHECK(x.dim() >= 2 && x.is_floating_point(), "orthogonalize: x is ", x.sizes(), " of ",
              x.scalar_type(), ", expected [..., rows, columns], floating point.");
  const std::int64_t rows = x.size(-2);
  const std::int64_t columns = x.size(-1);
  if (x.numel() == 0) {
    return x.clone();
  }
  const auto [a, b, c] = coefficients;
  at::Tensor y = x.reshape({-1, rows, columns});  // [n, rows, columns]
  if (rows > columns) {
    y = y.transpose(1, 2);
  }
  y = y.div(y.norm(2, {1, 2}, /*keepdim=*/true).clamp_min_(eps));
  for (std::int64_t step = 0; step < steps; ++step) {
    const at::Tensor gram = y.bmm(y.transpose(1, 2));
    y = y.baddbmm(gram.baddbmm(gram, gram, b, c), y, a);
  }
  return (rows > columns ? y.transpose(1, 2) : y).reshape(x.sizes());
}

}  // namespace tutti::functional

namespace tutti::optim::detail {

// In what type a matrix is orthogonalized.
TUTTI_INLINE at::ScalarType muon_type(const Muon& h, const Bucket& b) {
  const bool fast = !b.device.is_cpu() || ::tutti::detail::has_fast_bfloat16();
  if (h.ns_dtype == "bfloat16" || (h.ns_dtype == "auto" && fast && b.type != at::kDouble)) {
    return at::kBFloat16;
  }
  return b.type == at::kDouble ? at::kDouble : at::kFloat;
}

TUTTI_INLINE List orthogonalized(const Muon& h, const List& matrices) {
  return functional::orthogonalize(at::_ops::stack::call(matrices, 0), h.ns_steps,
                                   h.ns_coefficients, h.eps)
      .unbind(0);
}

// The same of matrices with so many rows, of which each rank has some. Ranks take turns in putting
// a matrix together and give everyone their rows of the result. first: whose turn it is.
TUTTI_INLINE List orthogonalized(const Muon& h, const List& parts, std::int64_t rows,
                                 const Shards& shards, std::int64_t first) {
  const std::int64_t ranks = shards.ranks();
  const std::int64_t chunk = shards.rows_of_rank(rows);
  const std::int64_t columns = parts.front().size(1);
  const std::int64_t mine = parts.front().size(0);
  const auto count = static_cast<std::int64_t>(parts.size());
  const std::int64_t most = (count + ranks - 1) / ranks;  // matrices of one rank
  const auto place = [&](const at::Tensor& all, std::int64_t k) {
    return all[(first + k) % ranks][k / ranks].narrow(0, 0, mine);
  };
  const at::Tensor given = parts.front().new_zeros({ranks, most, chunk, columns});
  for (std::int64_t k = 0; k < count; ++k) {
    place(given, k).copy_(parts[static_cast<std::size_t>(k)]);
  }
  const at::Tensor own = shards
                             .exchange(given)  // [ranks, most, chunk, columns]
                             .transpose(0, 1)
                             .reshape({most, ranks * chunk, columns})
                             .narrow(1, 0, rows);
  const std::int64_t turn = (shards.rank() + ranks - first % ranks) % ranks;
  const std::int64_t so_many = turn < count ? (count - turn + ranks - 1) / ranks : 0;
  const at::Tensor steps = parts.front().new_zeros({most, ranks * chunk, columns});
  if (so_many > 0) {
    steps.narrow(0, 0, so_many)
        .narrow(1, 0, rows)
        .copy_(functional::orthogonalize(own.narrow(0, 0, so_many), h.ns_steps, h.ns_coefficients,
                                         h.eps));
  }
  const at::Tensor returned =
      shards.exchange(steps.view({most, ranks, chunk, columns}).transpose(0, 1).contiguous());
  List out;
  for (std::int64_t k = 0; k < count; ++k) {
    out.push_back(place(returned, k));
  }
  return out;
}

TUTTI_INLINE void muon_step(const Muon& h, const Bucket& b, const Shards* shards) {
  const List& momenta = b.buffers[2];
  lerp_(momenta, b.gradients, 1 - h.momentum);
  const List updates = h.nesterov ? lerp(b.gradients, momenta, h.momentum) : momenta;
  decay_weights(b, h.lr * h.weight_decay);
  const at::ScalarType type = muon_type(h, b);
  const auto sizes_of = [&](std::size_t i) {
    return shards != nullptr ? shards->whole_sizes(b.parameters[i]) : b.parameters[i].sizes();
  };
  const auto shape_of = [&](std::size_t i) {
    const at::IntArrayRef sizes = sizes_of(i);
    return std::pair(sizes[0], c10::multiply_integers(sizes.slice(1)));
  };
  std::vector<std::size_t> by_shape;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    if (c10::multiply_integers(sizes_of(i)) > 0) {
      by_shape.push_back(i);
    }
  }
  std::stable_sort(by_shape.begin(), by_shape.end(), [&](std::size_t left, std::size_t right) {
    return shape_of(left) < shape_of(right);
  });
  std::int64_t turn = 0;
  for (auto first = by_shape.begin(); first != by_shape.end();) {
    const auto shape = shape_of(*first);
    const auto last =
        std::find_if(first, by_shape.end(), [&](std::size_t i) { return shape_of(i) != shape; });
    const std::vector<std::size_t> members(first, last);
    first = last;
    const auto [rows, columns] = shape;
    List matrices;
    for (const std::size_t i : members) {
      matrices.push_back(updates[i].reshape({updates[i].size(0), columns}).to(type));
    }
    const List steps = shards != nullptr ? orthogonalized(h, matrices, rows, *shards, turn)
                                         : orthogonalized(h, matrices);
    turn += static_cast<std::int64_t>(members.size());
    const auto tall = static_cast<double>(rows);
    const auto wide = static_cast<double>(columns);
    const double adjusted = h.adjust_lr_fn == "original" ? std::sqrt(std::max(1.0, tall / wide))
                                                         : 0.2 * std::sqrt(std::max(tall, wide));
    for (std::size_t k = 0; k < members.size(); ++k) {
      const at::Tensor& parameter = b.parameters[members[k]];
      parameter.add_(steps[k].reshape(parameter.sizes()), -h.lr * adjusted);
    }
  }
}

}  // namespace tutti::optim::detail

#endif
