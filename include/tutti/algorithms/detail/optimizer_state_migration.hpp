// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/optim/sgd.hpp>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

/// Optimizer state that goes on when a parameter gives way to others.
namespace tutti::detail {

/// How what an optimizer remembers of gradients follows a change of variables: `linear` for sums of
/// gradients, `square` for sums of their squares.
struct StateMapping {
  std::function<at::Tensor(const at::Tensor&)> linear;
  std::function<at::Tensor(const at::Tensor&)> square;

  /// The parameter is another, the numbers are the same.
  static StateMapping unchanged();

  /// The new parameter's gradient is `left * gradient * right`, of the parameter as a matrix; the
  /// squares follow as if its numbers were independent. shape: of the new parameter.
  static StateMapping product(const at::Tensor& left, const at::Tensor& right,
                              at::IntArrayRef shape);
};

/// Changes `state`, a copy, to that of `parameter`. False for optimizers that are not known.
bool map_state(torch::optim::OptimizerParamState& state, const at::Tensor& parameter,
               const StateMapping& how);

/// Carries optimizer state over a surgery: capture() before it, restore() after it.
class OptimizerStateMigration {
 public:
  explicit OptimizerStateMigration(surgery::Optimizers optimizers)
      : optimizers_(std::move(optimizers)) {}

  /// `after` will take over from `before`.
  void capture(const at::Tensor& before, const at::Tensor& after, const StateMapping& how);

  /// Puts `after` into the place of `before` in every group, for surgery by hand.
  void replace(const at::Tensor& before, const at::Tensor& after);

  /// Hands out what was noted.
  void restore();

 private:
  struct Noted {
    torch::optim::Optimizer* optimizer;
    at::Tensor parameter;
    std::unique_ptr<torch::optim::OptimizerParamState> state;
  };

  surgery::Optimizers optimizers_;
  std::vector<Noted> noted_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE StateMapping StateMapping::unchanged() {
  const auto same = [](const at::Tensor& t) { return t; };
  return {same, same};
}

TUTTI_INLINE StateMapping StateMapping::product(const at::Tensor& left, const at::Tensor& right,
                                                at::IntArrayRef shape) {
  const auto map = [shape = shape.vec()](const at::Tensor& l, const at::Tensor& r) {
    return [l, r, shape](const at::Tensor& t) {
      at::Tensor y = t.flatten(1);
      y = l.defined() ? l.to(y.scalar_type()).matmul(y) : y;
      y = r.defined() ? y.matmul(r.to(y.scalar_type())) : y;
      return y.reshape(shape).contiguous();
    };
  };
  const auto squared = [](const at::Tensor& t) { return t.defined() ? t.square() : t; };
  return {map(left, right), map(squared(left), squared(right))};
}

TUTTI_INLINE bool map_state(torch::optim::OptimizerParamState& state, const at::Tensor& parameter,
                            const StateMapping& how) {
  const auto moved = [](const at::Tensor& t, const auto& f) { return t.defined() ? f(t) : t; };
  const auto adam = [&](auto& s) {
    s.exp_avg(moved(s.exp_avg(), how.linear));
    s.exp_avg_sq(moved(s.exp_avg_sq(), how.square));
    s.max_exp_avg_sq(moved(s.max_exp_avg_sq(), how.square));
  };
  if (auto* own = dynamic_cast<optim::ParameterState*>(&state)) {
    own->parameter = parameter;
    own->buffers = {moved(own->buffers[0], how.linear), moved(own->buffers[1], how.square),
                    moved(own->buffers[2], how.square)};
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    sgd->momentum_buffer(moved(sgd->momentum_buffer(), how.linear));
  } else if (auto* plain = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    adam(*plain);
  } else if (auto* decoupled = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    adam(*decoupled);
  } else {
    return false;
  }
  return true;
}

TUTTI_INLINE void OptimizerStateMigration::capture(const at::Tensor& before,
                                                   const at::Tensor& after,
                                                   const StateMapping& how) {
  const c10::AutoGradMode no_grad(false);
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    const auto found = optimizer->state().find(before.unsafeGetTensorImpl());
    if (found == optimizer->state().end()) {
      continue;
    }
    std::unique_ptr<torch::optim::OptimizerParamState> state = found->second->clone();
    if (map_state(*state, after, how)) {
      noted_.push_back({optimizer, after, std::move(state)});
    }
  }
}

TUTTI_INLINE void OptimizerStateMigration::replace(const at::Tensor& before,
                                                   const at::Tensor& after) {
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    for (auto& group : optimizer->param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        parameter = parameter.is_same(before) ? after : parameter;
      }
    }
    optimizer->state().erase(before.unsafeGetTensorImpl());
  }
}

TUTTI_INLINE void OptimizerStateMigration::restore() {
  for (auto& [optimizer, parameter, state] : noted_) {
    optimizer->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  noted_.clear();
}

}  // namespace tutti::detail

#endif
