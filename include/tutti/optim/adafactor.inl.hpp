// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/adafactor.hpp>

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
