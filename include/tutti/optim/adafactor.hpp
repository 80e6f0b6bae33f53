// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/decay.hpp>
#include <tutti/optim/detail/fused.hpp>
#include <tutti/optim/detail/lists.hpp>
#include <tutti/optim/optimizer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// Adafactor as torch.optim.Adafactor: of the squares of a matrix's gradients it keeps the means of
/// rows and columns alone. At step t, with w = t^beta2_decay and rate = min(lr, 1 / sqrt(t)),
///
///     p *= 1 - lr * weight_decay
///     r += w * (mean over columns of g^2 - r);  c += w * (mean over rows of g^2 - c)
///     u = g / sqrt(r * c / mean(r))          of a vector: v += w * (g^2 - v), u = g / sqrt(v)
///     p -= rate * max(eps[1], rms(p)) * u / max(1, rms(u) / d)
///
/// rms(p) is that of the weight before it decays. Of more than two dimensions the last two are the
/// matrix. Source: Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory
/// cost", ICML 2018.
struct Adafactor {
  double lr = 1e-2;                    ///< >= 0
  double beta2_decay = -0.8;           ///< <= 0
  std::array<double, 2> eps{0, 1e-3};  ///< >= 0; the first 0: the machine epsilon of the type
  double d = 1;                        ///< steps are clipped to this root mean square; >= 1
  double weight_decay = 0;             ///< >= 0; decoupled
  bool maximize = false;               ///< go up the gradient

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  template <class Hyper = Adafactor>
  std::shared_ptr<optim::Fused<Hyper>> build(
      std::vector<torch::optim::OptimizerParamGroup> groups) const {
    return ::tutti::detail::make<optim::Fused<Hyper>>(groups, *this);
  }
  /// An optimizer over one group of these parameters.
  template <class Hyper = Adafactor>
  std::shared_ptr<optim::Fused<Hyper>> build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), *this)});
  }
};

namespace optim {
namespace detail {

void adafactor_steps(const Adafactor& h, const Bucket& b);
void adafactor_steps(const std::vector<ShardedBucket<Adafactor>>& all, const Shards& shards);

}  // namespace detail

template <>
struct Rule<Adafactor> {
  static constexpr std::string_view name = "Adafactor";
  static constexpr std::array<std::string_view, 3> buffers{"row_var", "col_var", "variance"};
  static constexpr bool counts_steps = true;

  static void validate(const Adafactor& h) {
    detail::need_learning_rate(name, h.lr);
    TUTTI_CHECK(h.beta2_decay <= 0.0, name, ": beta2_decay is ", h.beta2_decay,
                ", expected 0 or less.");
    TUTTI_CHECK(h.d >= 1.0, name, ": d is ", h.d, ", expected 1 or more.");
    detail::need_at_least_zero(name, "eps[0]", h.eps[0]);
    detail::need_at_least_zero(name, "eps[1]", h.eps[1]);
    detail::need_at_least_zero(name, "weight_decay", h.weight_decay);
  }

  template <class H, class F>
  static void each(H& h, F f) {
    f("lr", h.lr);
    f("beta2_decay", h.beta2_decay);
    f("eps1", h.eps[0]);
    f("eps2", h.eps[1]);
    f("d", h.d);
    f("weight_decay", h.weight_decay);
    f("maximize", h.maximize);
  }

  static unsigned buffer_mask(const Adafactor&, const at::Tensor& parameter) {
    return parameter.dim() > 1 ? 3U : 4U;
  }
  static std::vector<std::int64_t> buffer_sizes(at::IntArrayRef parameter, std::size_t b) {
    std::vector<std::int64_t> sizes = parameter.vec();
    if (b != 2 && sizes.size() > 1) {
      std::int64_t& size = sizes[sizes.size() - 1 - b];
      size = std::min<std::int64_t>(size, 1);
    }
    return sizes;
  }
  static at::Tensor like_buffer(const at::Tensor& parameter, std::size_t b) {
    return b == 2 || parameter.dim() < 2
               ? detail::like(parameter)
               : parameter.detach().new_empty(buffer_sizes(parameter.sizes(), b));
  }
  static void update(const Adafactor& h, double, const detail::Bucket& b) {
    detail::adafactor_steps(h, b);
  }
  static void update_shards(const std::vector<detail::ShardedBucket<Adafactor>>& all,
                            const Shards& shards) {
    detail::adafactor_steps(all, shards);
  }
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class Fused<Adafactor>;
#endif

}  // namespace optim

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE OptimizerSpec::OptimizerSpec(Adafactor);
#endif

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/optim/adafactor.inl.hpp>
#endif
