// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/gyro_dropout.hpp>
#include <tutti/nn/surgery.hpp>

/// GyroDropout: dropout that trains a fixed set of sub-networks, a few at a time.
namespace tutti {

namespace functional {

/// Replaces every Dropout of `model`, whose own p is not used any more, by a GyroDropout.
///
/// iters_per_epoch, max_epoch: how long the training is, at least sigma batches together; masks are
/// picked anew every `int(iters_per_epoch * max_epoch / sigma) * tau` calls. p, sigma, tau: as in
/// nn::GyroDropoutOptions. rng: what masks are drawn from; every layer has a stream of its own.
/// A second application changes nothing.
/// Throws c10::Error (ValueError) when a number is out of range, c10::Error when the model has no
/// Dropout and if_none is error.
/// Source: Lee et al., MLSys 2022; MosaicML Composer,
/// `composer.algorithms.gyro_dropout.apply_gyro_dropout`.
surgery::Report apply_gyro_dropout(torch::nn::Module& model, std::int64_t iters_per_epoch,
                                   std::int64_t max_epoch, double p = 0.5, std::int64_t sigma = 256,
                                   std::int64_t tau = 16, const Rng& rng = Rng(),
                                   surgery::IfNone if_none = surgery::IfNone::error);

}  // namespace functional

/// Replaces Dropout by masks that come back: of `sigma` drawn once, `tau` are in use at a time.
///
/// All ranks have the same masks and pick the same ones.
/// Source: Lee et al., "Gyro Dropout: Maximizing Ensemble Effect in Neural Network Training", MLSys
/// 2022.
struct GyroDropout final {
  double p = 0.5;            ///< how likely a mask drops a feature; in [0, 1)
  std::int64_t sigma = 256;  ///< how many masks there are; >= 1, at most the batches of the run
  std::int64_t tau = 16;     ///< how many are in use at a time; >= 1
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no Dropout

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<std::map<std::string, nn::GyroDropoutImpl::State>> saved{};   ///< by path, until FitStart
    Lazy<std::map<std::string, nn::GyroDropoutImpl::State>> before{};  ///< ahead of SAM's ascent
    Lazy<std::map<std::string, std::shared_ptr<nn::GyroDropoutImpl>>> layers{};  ///< by path
    std::int64_t ascent = -1;  ///< the batch that `before` belongs to
  } run{};

  static constexpr std::string_view name = "GyroDropout";
  static constexpr About about{
      .reads_batch = false,
      .no_graph = "picks its masks on the host while the model runs",
      .required_on_load = true,
  };
  using events = types<FitStart, BeforeTrainBatch>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<draws_masks>, id<replaces_layers<nn::Dropout>>},
      .conflicts_with = {{id<SelectiveBackprop>,
                          "the forward pass that selects examples uses up masks of the training"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(p >= 0 && p < 1, "GyroDropout: p", p, "a number from 0 to below 1");
    expect(sigma >= 1, "GyroDropout: sigma", sigma, "1 or more");
    expect(tau >= 1, "GyroDropout: tau", tau, "1 or more");
  }

  bool match(BeforeTrainBatch, const State& state) const {
    return state.is_ascent || run.ascent == state.timestamp.batch;
  }

  /// Replaces, and sets the period by the length of this fit.
  /// Throws c10::ValueError when that is not known in batches or below sigma.
  void apply(FitStart, State& state);

  /// Both passes of a step of SAM have the same masks.
  void apply(BeforeTrainBatch, State& state);

  /// Saves the masks, the picks, the counters and the random streams of all layers.
  void save(Archive& archive) const;
  /// Reads what save() wrote; it takes effect at FitStart.
  void load(const Archive& archive);

 private:
  std::int64_t length_of(const State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/gyro_dropout.inl.hpp>
#endif
