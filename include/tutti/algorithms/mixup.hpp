// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>
#include <tutti/losses/targets.hpp>

/// MixUp: training on convex combinations of examples.
namespace tutti {

namespace functional {

/// Blends each example with another of its batch: `(1 - mixing) * x + mixing * x[indices]`.
///
/// x: [N, ...]; integers become floating. indices: [N], int64, on x's device. mixing: in [0, 1].
/// Both products and the sum are rounded one by one, so the result is the same on every device.
/// Returns [N, ...]; x itself when mixing is 0. x is left alone.
/// Throws c10::Error (ValueError) when indices is not [N].
/// Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018, section 2.
at::Tensor mix(const at::Tensor& x, const at::Tensor& indices, double mixing);

/// The weight of the permuted side: min(z, 1 - z) with z from Beta(alpha, alpha), in [0, 1/2]; 0
/// without drawing when alpha is 0.
/// alpha: >= 0, else throws c10::Error (ValueError).
double draw_mixing(Rng& rng, double alpha);

/// What mixup_batch draws unless it is given.
struct MixUpOptions {
  double alpha = 0.2;              ///< of the Beta distribution; >= 0
  std::optional<double> mixing{};  ///< weight of the permuted side, in [0, 1]; else drawn
  at::Tensor indices{};            ///< [N], int64, a permutation; else drawn
};

/// What mixup_batch gives.
struct MixUpBatch {
  at::Tensor input;            ///< [N, ...], mixed
  at::Tensor permuted_target;  ///< [N, ...], target[indices]
  double mixing = 0;           ///< weight of the permuted side
  at::Tensor indices;          ///< [N], int64, on the input's device
};

/// Mixes the inputs of a batch with a permuted copy of themselves.
///
/// input: [N, ...]. target: [N, ...]. Draws the weight, then the permutation.
/// The loss to train on is (1 - mixing) times that against target plus mixing times that against
/// permuted_target, or the loss against targets blended likewise.
/// Throws c10::Error (ValueError) when alpha, mixing or the size of indices is out of range.
/// Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018; MosaicML
/// Composer, `composer.algorithms.mixup.mixup_batch`.
MixUpBatch mixup_batch(const at::Tensor& input, const at::Tensor& target, Rng& rng,
                       const MixUpOptions& options = {});

}  // namespace functional

/// Trains on convex combinations of each microbatch with a permuted copy of itself.
///
/// Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018.
struct MixUp final {
  double alpha = 0.2;  ///< of the Beta distribution that mixing comes from; >= 0, 0 mixes nothing
  bool interpolate_loss = false;  ///< two losses per microbatch; else one, of blended targets
  Key input_key{};                ///< the batch's tensor to mix; empty: batch.inputs()
  Key target_key{};               ///< likewise; empty: batch.targets()
  Rng rng{};

  /// What it holds while it runs; not an option.
  struct Run {
    double mixing = 0;           ///< weight of the permuted side in this microbatch
    Lazy<at::Tensor> indices{};  ///< the microbatch's permutation, int64 [N]
  } run{};

  static constexpr std::string_view name = "MixUp";
  using events = types<BeforeForward, BeforeLoss, BeforeBackward>;
  static constexpr Rules rules{
      .tags = {id<mixes_inputs>, id<interpolates_loss>, id<needs_dense_targets>},
      .runs_before = {{id<CutMix>,
                       "CutMix pastes pixels that are mixed already, so it mixes the targets "
                       "that MixUp has mixed"}},
      .checked_with = {{id<CutMix>,
                        "interpolate_loss of either would leave out the terms in which both "
                        "mix"}},
      .works_with = {{id<uses_closure>, "both passes of a step see one draw of the mix"},
                     {id<smooths_targets>, "both terms of an interpolated loss are smoothed"}},
      .graph = {.ahead = {id<BeforeLoss>}, .instead = {id<BeforeBackward>}},
  };

  template <class Model>
  static constexpr bool supports = !lists<Model, takes_tokens>;  // ids cannot be blended

  /// Throws c10::ValueError when alpha is negative.
  constexpr void validate() const { expect(alpha >= 0, "MixUp: alpha", alpha, "0 or more"); }

  /// Throws c10::ValueError beside another policy that mixes inputs when this one interpolates the
  /// loss: the terms in which both mix would be missing.
  template <class Other>
  void validate_with(const Other&) const {
    detail::refuse_second_mixer<MixUp, Other>(interpolate_loss);
  }

  /// Throws c10::ValueError when targets are to be mixed for a loss that takes class indices only;
  /// warns when the loss is to be interpolated but is not linear in the targets.
  template <class Model>
  void validate_model() const {
    detail::check_loss_of_mixed<MixUp, Model>(interpolate_loss);
  }

  bool match(BeforeLoss, const State&) const { return !interpolate_loss; }
  bool match(BeforeBackward, const State&) const { return interpolate_loss; }

  /// Draws the weight, then the permutation, and replaces the inputs.
  void apply(BeforeForward, State& state);

  /// Draws as apply(BeforeForward) does, for a fused pass.
  [[nodiscard]] fused::Mix pixels(const fused::Frame& frame) {
    run.mixing = functional::draw_mixing(rng, alpha);
    *run.indices = rng.permutation(frame.images);
    return {*run.indices, run.mixing};
  }

  /// The same in a recipe; nothing where another tensor than the inputs is mixed.
  [[nodiscard]] std::optional<fused::Mix> pixels(const fused::Frame& frame, State& state);

  /// Targets are mixed as the inputs are, so that a loss need not see dense ones.
  [[nodiscard]] bool targets_follow(const State& state) const {
    return !interpolate_loss && detail::means_targets(state.batch, target_key);
  }

  /// Replaces the targets by blended ones, dense.
  void apply(BeforeLoss, State& state) const;

  /// Adds the loss against the permuted targets.
  void apply(BeforeBackward, State& state) const {
    detail::interpolate_loss(state, target_key, *run.indices, 1 - run.mixing);
  }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/mixup.inl.hpp>
#endif
