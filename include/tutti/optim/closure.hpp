// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/class_name.hpp>

/// Optimizers that evaluate the loss and its gradients themselves, more than once in a step.

namespace tutti::optim {

/// A base of optimizers of one's own whose `step(closure)` calls the closure; found by
/// dynamic_cast.
///
///     class Secant final : public torch::optim::Optimizer, public tutti::optim::CallsClosure { ...
///     };
struct CallsClosure {
  virtual ~CallsClosure() = default;
};

/// `O` is an optimizer whose `step(closure)` calls the closure, as its type says.
template <class O>
concept ClosureOptimizer =
    std::derived_from<O, torch::optim::LBFGS> || std::derived_from<O, CallsClosure>;

/// Whether this optimizer's `step(closure)` calls the closure, and so needs one:
/// torch::optim::LBFGS and whatever derives from CallsClosure.
inline bool calls_closure(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr ||
         dynamic_cast<const CallsClosure*>(&optimizer) != nullptr;
}

/// optimizer.step(). Throws c10::Error where that calls the closure that it is not given.
inline void step_without_closure(torch::optim::Optimizer& optimizer) {
  try {
    optimizer.step();
  } catch (const std::bad_function_call&) {
    TUTTI_CHECK(false, class_name(optimizer),
                ": step() was called without a closure, and calls it; derive the optimizer from "
                "tutti::optim::CallsClosure, too, so that the trainer gives it one");
  }
}

}  // namespace tutti::optim
