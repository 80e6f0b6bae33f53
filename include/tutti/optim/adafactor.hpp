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

#include <ATen/ops/cat_ops.h>
#include <c10/util/accumulate.h>

namespace tutti::optim::detail {

// One step of a parameter, or of a rank's rows of it, in three parts. What is summed over rows has
// to be of all rows from a part to the next.
class AdafactorStep {
 public:
  AdafactorStep(const Adafactor& h, const Bucket& b, std::size_t i, at::IntArrayRef whole)
      : h_(h),
        parameter_(b.parameters[i]),
        gradient_(h.maximize ? b.gradients[i].neg() : b.gradients[i]),
        whole_(whole.vec()),
        t_(static_cast<double>(b.step)) {
    each_buffer(b.mask, [&](std::size_t k) { buffers_[k] = b.buffers[k][i]; });
  }

  // Moves what is of rows; the sums are of those there are.
  void begin() {
    weight_norm = parameter_.norm(2, wide());
    if (h_.weight_decay != 0.0) {
      parameter_.mul_(1 - h_.lr * h_.weight_decay);
    }
    if (!is_matrix()) {
      buffers_[2].lerp_(gradient_.mul(gradient_), weight());
      return;
    }
    const at::Tensor squares = gradient_.norm(2, -1, /*keepdim=*/true).square_();
    buffers_[0].lerp_(squares.div_(static_cast<double>(gradient_.size(-1))), weight());
    row_sum = buffers_[0].sum(-2, /*keepdim=*/true);
    column_squares = gradient_.norm(2, -2, /*keepdim=*/true).square_();
  }

  // Moves what is of columns, and says where to go.
  void turn() {
    const double eps = h_.eps[0] != 0.0          ? h_.eps[0]
                       : type() == at::kDouble   ? std::numeric_limits<double>::epsilon()
                       : type() == at::kHalf     ? std::exp2(-10)
                       : type() == at::kBFloat16 ? std::exp2(-7)
                                                 : std::exp2(-23);
    if (parameter_.numel() == 0) {
      update_norm = weight_norm.new_zeros({});
      return;
    }
    if (is_matrix()) {
      const auto rows = static_cast<double>(whole_[whole_.size() - 2]);
      buffers_[1].lerp_(column_squares.div_(rows), weight());
      update_ = buffers_[0].matmul(buffers_[1]).div_(row_sum.div_(rows).clamp_min_(eps));
    } else {
      update_ = buffers_[2].clone();
    }
    update_.clamp_min_(eps * eps).rsqrt_().mul_(gradient_);
    update_norm = update_.norm(2, wide());
  }

  void go() {
    if (parameter_.numel() == 0) {
      return;
    }
    const double root = std::sqrt(static_cast<double>(c10::multiply_integers(whole_)));
    const double rate = std::min(h_.lr, 1 / std::sqrt(t_));
    const at::Tensor scale = weight_norm.div_(root).clamp_min_(h_.eps[1]).mul_(rate);
    const at::Tensor excess = update_norm.div_(root * h_.d).clamp_min_(1.0);
    parameter_.addcmul_(update_, scale.div_(excess), -1.0);
  }

  // Ranks have rows of the matrix, not matrices.
  [[nodiscard]] bool rows_are_cut() const { return whole_.size() == 2; }
  [[nodiscard]] at::ScalarType type() const { return parameter_.scalar_type(); }
  [[nodiscard]] at::ScalarType wide() const {
    return type() == at::kDouble ? at::kDouble : at::kFloat;
  }

  at::Tensor weight_norm;     // []
  at::Tensor row_sum;         // [..., 1, 1]
  at::Tensor column_squares;  // [..., 1, columns]
  at::Tensor update_norm;     // []

 private:
  [[nodiscard]] bool is_matrix() const { return whole_.size() > 1; }
  [[nodiscard]] double weight() const { return std::pow(t_, h_.beta2_decay); }

  const Adafactor& h_;
  at::Tensor parameter_;
  at::Tensor gradient_;
  std::vector<std::int64_t> whole_;  // sizes
  double t_;
  std::array<at::Tensor, 3> buffers_;
  at::Tensor update_;
};

TUTTI_INLINE void adafactor_steps(const Adafactor& h, const Bucket& b) {
  for (std::size_t i = 0; i < b.parameters.size(); ++i) {
    if (b.parameters[i].numel() > 0) {
      AdafactorStep step(h, b, i, b.parameters[i].sizes());
      step.begin();
      step.turn();
      step.go();
    }
  }
}

// Replaces the tensors by their sums over ranks, in one message.
TUTTI_INLINE void sum_over_ranks(const std::vector<at::Tensor*>& tensors, const Shards& shards) {
  List parts;
  for (const at::Tensor* const one : tensors) {
    parts.push_back(one->to(at::kDouble).reshape({-1}));
  }
  const at::Tensor sums = at::_ops::cat::call(parts, 0);
  shards.sum(sums);
  std::int64_t from = 0;
  for (at::Tensor* const one : tensors) {
    *one =
        sums.narrow(0, from, one->numel()).view(one->sizes()).to(one->scalar_type(), false, true);
    from += one->numel();
  }
}

TUTTI_INLINE void adafactor_steps(const std::vector<ShardedBucket<Adafactor>>& all,
                                  const Shards& shards) {
  std::vector<AdafactorStep> steps;
  for (const auto& [h, initial_lr, b] : all) {
    for (std::size_t i = 0; i < b.parameters.size(); ++i) {
      const at::IntArrayRef whole = shards.whole_sizes(b.parameters[i]);
      if (c10::multiply_integers(whole) > 0) {
        steps.emplace_back(h, b, i, whole);
      }
    }
  }
  if (steps.empty()) {
    return;
  }
  std::vector<at::Tensor*> of_rows;
  std::vector<at::Tensor*> of_updates;
  for (AdafactorStep& step : steps) {
    step.begin();
    step.weight_norm = step.weight_norm.to(at::kDouble).square_();
    of_rows.push_back(&step.weight_norm);
    if (step.rows_are_cut()) {
      of_rows.push_back(&step.row_sum);
      of_rows.push_back(&step.column_squares);
    }
    of_updates.push_back(&step.update_norm);
  }
  sum_over_ranks(of_rows, shards);
  for (AdafactorStep& step : steps) {
    step.turn();
    step.update_norm = step.update_norm.to(at::kDouble).square_();
  }
  sum_over_ranks(of_updates, shards);
  for (AdafactorStep& step : steps) {
    step.weight_norm = step.weight_norm.sqrt_().to(step.wide());
    step.update_norm = step.update_norm.sqrt_().to(step.wide());
    step.go();
  }
}

}  // namespace tutti::optim::detail

#endif
