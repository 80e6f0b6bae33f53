// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>

/// TrainerOptions::detect_anomaly: LibTorch's anomaly mode in a run.
namespace tutti::train {

/// LibTorch's anomaly mode while it lives: its engine looks at every gradient and ends with the
/// operator that made the first nan. It is of all threads.
class AnomalyScope {
 public:
  explicit AnomalyScope(bool on);
  ~AnomalyScope();
  AnomalyScope(const AnomalyScope&) = delete;
  AnomalyScope& operator=(const AnomalyScope&) = delete;

 private:
  bool on_;
  bool was_on_;
  bool checked_nan_;
};

/// Throws c10::Error with what a backward pass has said, the batch, the loss, and the parameters
/// whose values or gradients are not finite. Does nothing when the error is no anomaly.
void explain_anomaly(const State& state, const std::exception& error);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/anomaly.inl.hpp>
#endif
