// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

/// Evaluation mode for a while.
namespace tutti::nn {

/// Puts a model into evaluation mode; at scope exit every module has the mode back that it had.
///
///     const tutti::nn::EvalMode eval(*model);
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& model) {
    for (const auto& module : model.modules(/*include_self=*/false)) {
      modes_.emplace_back(module, module->is_training());
    }
    model_ = {&model, model.is_training()};
    model.eval();
  }
  ~EvalMode() {
    model_.first->train(model_.second);
    for (auto& [module, training] : modes_) {
      if (module->is_training() != training) {
        module->train(training);  // parents first, so children are set after them
      }
    }
  }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::pair<torch::nn::Module*, bool> model_;  // may be on the stack
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace tutti::nn
