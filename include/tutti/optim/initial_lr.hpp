// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace tutti {

class Schedule;

namespace optim {

/// What the options of an optimizer's group also are: the learning rate that a schedule multiplies,
/// and that decoupled weight decay is relative to; the group's own schedule, where it has one.
struct InitialLearningRate {
  InitialLearningRate() = default;
  InitialLearningRate(const InitialLearningRate&) = default;
  InitialLearningRate& operator=(const InitialLearningRate&) = default;
  virtual ~InitialLearningRate() = default;

  double initial_lr = 0.0;
  std::shared_ptr<const Schedule> schedule{};  ///< in place of the run's; null: none
};

}  // namespace optim

}  // namespace tutti
