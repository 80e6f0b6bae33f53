// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <unordered_set>
#include <vector>

#include <tutti/config.hpp>

#include <torch/optim/optimizer.h>

/// The optimizers that surgery keeps in step with a model.
namespace tutti::surgery {

/// A view of the optimizers that hold a model's parameters; none is allowed.
///
/// Built from what callers have: `state.optimizers`, one optimizer, or a list of addresses. Null
/// is left out, and so is one that is there already. The optimizers must outlive the call that it
/// is passed to.
class Optimizers {
 public:
  Optimizers() = default;
  Optimizers(torch::optim::Optimizer& optimizer) : all_{&optimizer} {}
  Optimizers(std::initializer_list<torch::optim::Optimizer*> optimizers) {
    for (torch::optim::Optimizer* optimizer : optimizers) {
      add(optimizer);
    }
  }
  Optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
    for (const auto& optimizer : optimizers) {
      add(optimizer.get());
    }
  }

  [[nodiscard]] bool empty() const { return all_.empty(); }
  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }

 private:
  void add(torch::optim::Optimizer* optimizer) {
    if (optimizer != nullptr && std::find(begin(), end(), optimizer) == end()) {
      all_.push_back(optimizer);
    }
  }

  std::vector<torch::optim::Optimizer*> all_;
};

/// Some optimizer has this parameter in one of its groups.
inline bool holds(const Optimizers& optimizers, const c10::TensorImpl* parameter) {
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      for (const at::Tensor& one : group.params()) {
        if (one.unsafeGetTensorImpl() == parameter) {
          return true;
        }
      }
    }
  }
  return false;
}

/// Takes parameters out of every group, with their state.
inline void forget(const Optimizers& optimizers,
                   const std::unordered_set<c10::TensorImpl*>& parameters) {
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      std::erase_if(group.params(), [&](const at::Tensor& parameter) {
        return parameters.contains(parameter.unsafeGetTensorImpl());
      });
    }
    for (c10::TensorImpl* parameter : parameters) {
      optimizer->state().erase(parameter);
    }
  }
}

}  // namespace tutti::surgery
