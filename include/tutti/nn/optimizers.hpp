// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
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

}  // namespace tutti::surgery
