// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/optim/shards.hpp>

/// What an optimizer does on its way through memory beside its step: clip the gradients before they
/// are used, and let averages follow the new weights.

namespace tutti::optim {

/// Averages that follow weights: `e = smoothing * e + (1 - smoothing) * w` after the step.
struct Averaging {
  const std::vector<at::Tensor>* averages = nullptr;  ///< null: none
  const std::vector<at::Tensor>* weights = nullptr;   ///< as many, the model's own
  std::uint64_t version = 0;          ///< another one whenever the tensors of the lists are others
  double smoothing = 0.0;             ///< in [0.5, 1]
  std::vector<char>* done = nullptr;  ///< as many; the optimizer sets those that it has averaged
};

/// What is left to the optimizer in one step.
struct FusedStep {
  double scale = 1.0;         ///< times every gradient of the optimizer's parameters
  at::Tensor device_scale{};  ///< [], where the gradients are: the scale, in place of the number
  double limit = std::numeric_limits<double>::infinity();  ///< then clamped to [-limit, limit]
  bool keep_gradients = true;  ///< afterwards grad() has to be what has been stepped along
  Averaging averaging{};

  /// The gradients are changed.
  [[nodiscard]] bool clips() const { return device_scale.defined() || scale != 1.0 || limits(); }
  [[nodiscard]] bool limits() const { return limit != std::numeric_limits<double>::infinity(); }
};

/// An optimizer that takes a FusedStep; found by dynamic_cast.
struct FusedStepOptimizer {
  virtual ~FusedStepOptimizer() = default;

  /// A step, and all of `fused` but averages that it cannot update on its way: those it leaves, and
  /// their `done`, as they are.
  virtual void step(const FusedStep& fused) = 0;

  /// Every element is updated from what belongs to it alone, so parameters may be cut into parts.
  [[nodiscard]] virtual bool elementwise() const { return true; }

  /// It can step where a rank has rows of each parameter: an elementwise one without a word of
  /// other ranks, another with what take_shards() gives.
  [[nodiscard]] virtual bool steps_on_shards() const { return elementwise(); }

  /// The parameters are rows from now on, of which `shards` knows the rest; null: they are whole.
  virtual void take_shards(std::shared_ptr<const Shards>) {}

  /// The sizes of what it saves under `name` of a whole parameter of such sizes. Of rows it has
  /// the same rows of that, if it has as many, else all of it; of no row nothing.
  [[nodiscard]] virtual std::vector<std::int64_t> state_sizes(std::string_view /*name*/,
                                                              at::IntArrayRef parameter) const {
    return parameter.vec();
  }
};

/// An earlier name; a sweep is a search of hyperparameters now.
using Sweep [[deprecated("write tutti::optim::FusedStep")]] = FusedStep;
/// An earlier name of FusedStepOptimizer.
using Sweeping [[deprecated("write tutti::optim::FusedStepOptimizer")]] = FusedStepOptimizer;

}  // namespace tutti::optim
