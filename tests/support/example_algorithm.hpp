// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a user must write to add a policy of his own, kept compiled. The first one is the smallest
// that is complete; the second one has every member that the library looks for.

#include <cstdint>
#include <string_view>

#include <ATen/ops/randn_like.h>
#include <torch/nn/module.h>

#include <tutti/core/archive.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>

namespace example {

/// Adds noise to every gradient.
struct GradientNoise final {
  double stddev = 1e-3;

  void apply(tutti::AfterBackward, tutti::State& state) const {
    for (auto& parameter : state.model->parameters()) {
      if (auto& gradient = parameter.mutable_grad(); gradient.defined()) {
        gradient.add_(at::randn_like(gradient), stddev);
      }
    }
  }
};

/// A tag of our own, by which other policies can speak of this one.
struct drops_examples {};

/// Trains on the first half of some batches, chosen at random.
struct HalfBatches final {
  double probability = 0.5;  ///< that a batch is cut; in [0, 1]
  tutti::Rng rng{};          ///< seeded from the run's seed and our name, kept in checkpoints
  std::int64_t cut = 0;      ///< written by the policy: batches cut so far

  static constexpr std::string_view name = "HalfBatches";         // default: the type's name
  using events = tutti::types<tutti::BatchStart, tutti::FitEnd>;  // compared with the overloads
  using tags = tutti::types<drops_examples>;
  using runs_before = tutti::types<tutti::mixes_inputs>;  // policies or tags; likewise runs_after,
  using conflicts_with = tutti::types<drops_examples>;    // requires_policy

  /// Throws when a hyperparameter is out of range.
  void validate() const {
    TORCH_CHECK_VALUE(probability >= 0 && probability <= 1, "HalfBatches: probability is ",
                      probability, ", expected a number from 0 to 1.");
  }

  /// Whether to act at this event; asked for every algorithm before the first of them acts.
  bool match(tutti::BatchStart, const tutti::State& state) const {
    return state.batch.num_samples() > 1;
  }

  void apply(tutti::BatchStart, tutti::State& state) {
    if (rng.uniform() < probability) {
      state.batch = state.batch.split((state.batch.num_samples() + 1) / 2).front();
      ++cut;
    }
  }
  void apply(tutti::FitEnd, tutti::State& state) {
    state.log_metrics({{"half_batches/cut", static_cast<double>(cut)}});
  }

  /// What a checkpoint keeps; hyperparameters come with the recipe.
  void save(tutti::Archive& archive) const { archive.put("cut", cut); }
  void load(const tutti::Archive& archive) { cut = archive.get<std::int64_t>("cut"); }

  /// The run is over, also after an exception.
  void close(tutti::State&) {}
};

}  // namespace example
