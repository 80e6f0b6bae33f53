// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/class_name.hpp>

#include <memory>
#include <string_view>
#include <vector>

#include <torch/optim/optimizer.h>

/// Optimizers that train other weights than those that are to be used afterwards.
namespace tutti::optim {

/// An optimizer whose model holds, while it trains, weights that gradients are taken at, and whose
/// results are averages of weights: the schedule-free ones. Found by dynamic_cast.
struct KeepsAverages {
  virtual ~KeepsAverages() = default;

  /// Puts the averages into the model, and with `false` the training weights back, bit for bit.
  /// Parameters that have not been trained yet stay. step() throws c10::Error in between.
  virtual void use_averages(bool yes) = 0;
  [[nodiscard]] virtual bool averages_in_use() const = 0;

  /// Takes what the model holds now, which is from elsewhere, as averages and as training weights
  /// at once. Nothing while averages are in use: training then goes on from what it had.
  virtual void adopt_weights() = 0;
};

/// While this lives, the model holds what its optimizers train it for. A Trainer has one around
/// every evaluation and prediction, and while a checkpoint is written; a loop of one's own:
///
///     const optim::AveragesInUse averages({optimizer});
///     evaluate(model);
class AveragesInUse {
 public:
  explicit AveragesInUse(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
    for (const auto& optimizer : optimizers) {
      auto* const keeps = dynamic_cast<KeepsAverages*>(optimizer.get());
      if (keeps != nullptr && !keeps->averages_in_use()) {
        keeps->use_averages(true);
        entered_.push_back({optimizer, keeps});
      }
    }
  }
  ~AveragesInUse() {
    for (const auto& [optimizer, keeps] : entered_) {
      keeps->use_averages(false);
    }
  }
  AveragesInUse(const AveragesInUse&) = delete;
  AveragesInUse& operator=(const AveragesInUse&) = delete;

 private:
  struct Entered {
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    KeepsAverages* keeps;
  };
  std::vector<Entered> entered_;
};

/// Throws c10::Error where an optimizer keeps averages. policy: the one that averages as well.
inline void refuse_averages(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers,
                            std::string_view policy) {
  for (const auto& optimizer : optimizers) {
    TUTTI_CHECK(dynamic_cast<const KeepsAverages*>(optimizer.get()) == nullptr, policy, ": ",
                class_name(*optimizer), " averages its weights itself; leave out ", policy,
                ", or take an optimizer that is not schedule-free.");
  }
}

}  // namespace tutti::optim
