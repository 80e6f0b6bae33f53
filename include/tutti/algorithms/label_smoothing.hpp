// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/losses/targets.hpp>

/// LabelSmoothing: targets that leave some doubt.
namespace tutti {

namespace detail {

// Some index is negative. On the CPU only, where looking costs no waiting.
bool some_negative(const at::Tensor& indices);

// keep * x + uniform, for a tensor of ours: contiguous and fp32.
at::Tensor scale_and_shift(at::Tensor x, double keep, double uniform);

at::Tensor smooth_indices(const at::Tensor& logits, const at::Tensor& target, double smoothing,
                          double uniform);

at::Tensor smooth_dense(const at::Tensor& target, double smoothing, double uniform);

}  // namespace detail

namespace functional {

/// Targets blended with the uniform distribution: `(1 - smoothing) * target + smoothing / K`.
///
/// logits: [N, K, ...], read for their shape only. target: indices [N, ...] or dense [N, K, ...].
/// smoothing: in [0, 1].
/// Returns fp32 [N, K, ...]. Rows without any class, as negative indices are, stay empty, and dense
/// rows that sum to s < 1 get s times the uniform part.
/// Throws c10::Error (ValueError) when smoothing is out of range or the shapes do not fit.
/// Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015,
/// section 7; MosaicML Composer, `composer.algorithms.label_smoothing.smooth_labels`.
at::Tensor smooth_labels(const at::Tensor& logits, const at::Tensor& target,
                         double smoothing = 0.1);

}  // namespace functional

/// Trains against targets blended with the uniform distribution.
///
/// The loss sees dense targets; after it the batch has its own ones again, also when a policy that
/// mixes has replaced them before.
/// Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015.
struct LabelSmoothing final {
  double smoothing = 0.1;  ///< part of the uniform distribution; in [0, 1]
  Key target_key{};        ///< the batch's tensor to smooth; empty: batch.targets()

  static constexpr std::string_view name = "LabelSmoothing";
  using events = types<BeforeLoss, AfterLoss>;
  static constexpr Rules rules{
      .tags = {id<smooths_targets>, id<needs_dense_targets>},
      .runs_after = {{id<mixes_inputs>,
                      "the mixed targets are what has to be smooth, and smoothing is "
                      "taken back first"},
                     {id<interpolates_loss>, "the interpolated targets are what has to be smooth"}},
      .graph = {.ahead = {id<BeforeLoss>}, .behind = {id<AfterLoss>}},
  };

  template <class Model>
  static constexpr bool supports = !lists<Model, loss_takes_indices>;

  /// Throws c10::ValueError when smoothing is out of range.
  constexpr void validate() const {
    expect(smoothing >= 0 && smoothing <= 1, "LabelSmoothing: smoothing", smoothing,
           "a number from 0 to 1");
  }

  /// The batch's targets are smoothed, which a loss that does it itself need not see.
  [[nodiscard]] bool targets_follow(const State& state) const {
    return detail::means_targets(state.batch, target_key);
  }

  /// Replaces the targets by smoothed ones.
  void apply(BeforeLoss, State& state) const;

  /// Puts the batch's own targets back.
  void apply(AfterLoss, State& state) const { detail::restore_targets(state.batch, target_key); }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/label_smoothing.inl.hpp>
#endif
