// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/comparison.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/policy_states.hpp>

namespace tutti {

/// Which evaluation of a run is its best, for TrainerOptions::restore_best:
///
///     .restore_best = {.monitor = "MulticlassAccuracy", .dataloader_label = "test"}
///
/// The names are those of EarlyStopper and CheckpointSaver.
struct RestoreBest {
  std::string monitor{};                        ///< an evaluation metric's name; empty: off
  std::string dataloader_label{};               ///< the evaluation set that it is of
  Comparison comparison = Comparison::by_name;  ///< which value is better

  explicit operator bool() const { return !monitor.empty() || !dataloader_label.empty(); }
};

/// The best evaluation of a run so far.
struct BestValue {
  double value = 0;
  std::int64_t epoch = 0;  ///< epochs that had ended
  std::int64_t batch = 0;  ///< batches trained
};

namespace train {

/// A model's parameters and buffers, by name.
using Weights = std::vector<std::pair<std::string, at::Tensor>>;

/// Copies of all parameters and buffers, on the host or where they are.
Weights copy_weights(const torch::nn::Module& model, bool to_host);

/// Copies them back into the model, whose tensors stay the same objects.
/// Throws c10::Error when the model has other names or shapes now.
void give_weights(const Weights& weights, torch::nn::Module& model);

/// What a model holds, and what policies would put into it to be evaluated or saved (EMA's averages
/// do so), to be put back bit for bit.
class KeptWeights {
 public:
  KeptWeights(const PolicyStates& policies, State& state);

  void give_back() const;

 private:
  const PolicyStates& policies_;
  State& state_;
  Weights training_;
  Weights evaluated_;  // empty: the same
};

/// Makes `weights` those that are trained and those that policies put in their place.
void give_everywhere(const Weights& weights, const PolicyStates& policies, State& state);

/// The weights of the best evaluation during fit, on the host.
class BestWeights {
 public:
  /// policies: of the run.
  BestWeights(RestoreBest options, PolicyStates policies)
      : options_(std::move(options)), policies_(std::move(policies)) {}

  [[nodiscard]] const RestoreBest& options() const { return options_; }

  /// After evaluations during fit: copies the weights that were evaluated when they are the best,
  /// EMA's averages where they were. The first of equal ones stays.
  /// Throws c10::ValueError with the names that exist when the set has no such metric.
  void look(State& state);

  /// The best one; nothing before the first evaluation.
  [[nodiscard]] const std::optional<BestValue>& best() const { return best_; }

  /// Puts the best weights into the model, also in place of EMA's averages.
  void restore(State& state) const { give_everywhere(weights_, policies_, state); }

  /// The value and the weights, so that a run that goes on has them.
  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  RestoreBest options_;
  PolicyStates policies_;
  std::optional<BestValue> best_;
  Weights weights_;
};

}  // namespace train

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/train/best_weights.inl.hpp>
#endif
