// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_clamp_max_ops.h>
#include <ATen/ops/_foreach_clamp_min_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/nan_to_num_ops.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/gradients.hpp>
#include <tutti/checkpoint/glob.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/optim/fused_step.hpp>

/// GradientClipping: a limit on gradients before the optimizer sees them.
namespace tutti {

/// What GradientClipping limits.
enum class ClippingType : std::uint8_t {
  unset,     ///< nothing was chosen; refused
  norm,      ///< the 2-norm over all gradients together
  value,     ///< every element's magnitude
  adaptive,  ///< every unit's norm, relative to that of its weights
};

/// "norm", "value", "adaptive"; "unset".
constexpr std::string_view to_string(ClippingType type) {
  constexpr std::string_view names[] = {"unset", "norm", "value", "adaptive"};
  return names[static_cast<std::size_t>(type)];
}

namespace detail {

// Scales gradients on the CPU to a norm of at most `threshold`; returns their norm.
double clip_host_norm(const std::vector<at::Tensor>& gradients, double threshold);

// The same on a device, which is not waited for.
at::Tensor clip_device_norm(const std::vector<at::Tensor>& gradients, double threshold);

at::Tensor clip_norm(const std::vector<at::Tensor>& gradients, double threshold);

void clip_value(const std::vector<at::Tensor>& gradients, double threshold);

// Leaves it to the optimizer's step, where that can be; returns the norm as below. gradients: at
// least one, all on one device.
at::Tensor fold_clipping(optim::FusedStep& fused, const std::vector<at::Tensor>& gradients,
                         ClippingType type, double threshold);

// clip() where every rank of `group` has a part of each gradient: rows of its dimension 0. Ranks
// have the same gradients in the same order, some of them without rows.
at::Tensor clip_parts(const Gradients& both, ClippingType type, double threshold, double floor,
                      dist::Communicator& group);

// clip() of a model that is spread over ranks.
at::Tensor clip_spread(const Gradients& both, ClippingType type, double threshold,
                       const State& state);

// Returns the norm before clipping where that is known, else an undefined tensor.
at::Tensor clip(const Gradients& both, ClippingType type, double threshold, double floor);

}  // namespace detail

namespace functional {

/// Limits the gradients of these parameters, in place; those without one are skipped.
///
/// norm: `g *= min(1, threshold / (|G| + 1e-6))`, |G| over all gradients together. value: clamps to
/// [-threshold, threshold]. adaptive: `g *= min(1, threshold * max(|w|, floor) / |g|)` per unit: a
/// slice of dimension 0, or the whole of a parameter with less than two dimensions.
/// clipping_threshold: > 0. adaptive_floor: >= 0.
/// Returns |G| before clipping, a scalar, for norm; undefined otherwise and without gradients. On a
/// GPU nothing waits for it.
/// Throws c10::Error when a gradient is sparse, (ValueError) when the threshold is not above 0.
/// Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2012 (norm);
/// Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization", 2021,
/// section 4 (adaptive); MosaicML Composer,
/// `composer.algorithms.gradient_clipping.apply_gradient_clipping`.
at::Tensor apply_gradient_clipping(const std::vector<at::Tensor>& parameters,
                                   ClippingType clipping_type, double clipping_threshold,
                                   double adaptive_floor = 1e-3);

/// The same for all parameters of a model.
at::Tensor apply_gradient_clipping(const torch::nn::Module& model, ClippingType clipping_type,
                                   double clipping_threshold, double adaptive_floor = 1e-3);

}  // namespace functional

/// Limits the gradients of the optimizers' parameters just before their step.
///
/// With SAM only the gradients that make the step are clipped. Logs `gradient_clipping/norm`, the
/// norm before clipping, when norms are what is limited and somebody listens.
/// Source: Pascanu et al., 2012; Brock et al., 2021; see functional::apply_gradient_clipping.
struct GradientClipping final {
  ClippingType clipping_type = ClippingType::unset;  ///< has to be chosen
  double clipping_threshold = 0;                     ///< has to be set; > 0
  double adaptive_floor = 1e-3;  ///< adaptive: norms of weights count as at least this; >= 0
  Keys exclude{};                ///< globs of parameter names left alone: "fc.*"
  bool in_ascent = false;        ///< also clip the gradients along which SAM climbs

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<at::Tensor> norm{};                           ///< the last norm before clipping, a scalar
    Lazy<std::unordered_set<const void*>> excluded{};  ///< what `exclude` means
  } run{};

  static constexpr std::string_view name = "GradientClipping";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,  // after the step
      .fuses_into_step = {id<AfterTrainBatch>},
      .only_watches = {id<BatchEnd>},
  };
  using events = types<FitStart, AfterTrainBatch, BatchEnd>;
  static constexpr Rules rules{
      .tags = {id<clips_gradients>},
      .warns_with = {{id<freezes_parameters>,
                      "the norm over all gradients shrinks as layers freeze, so "
                      "that the threshold comes to mean something else"}},
  };

  /// Throws c10::ValueError when type or threshold are not set or out of range.
  constexpr void validate() const {
    expect(clipping_type != ClippingType::unset,
           "GradientClipping: clipping_type is not set; set it to ClippingType::norm, value or "
           "adaptive.");
    expect(clipping_threshold > 0, "GradientClipping: clipping_threshold", clipping_threshold,
           "more than 0; there is no default");
    expect(adaptive_floor >= 0, "GradientClipping: adaptive_floor", adaptive_floor, "0 or more");
  }

  bool match(FitStart, const State&) const { return !exclude.empty(); }
  bool match(AfterTrainBatch, const State& state) const { return in_ascent || !state.is_ascent; }
  bool match(BatchEnd, const State& state) const {
    return run.norm->defined() && state.logger.wants_metrics();
  }

  /// Finds the parameters that `exclude` names. Throws c10::ValueError when a glob names none.
  void apply(FitStart, State& state);

  /// Clips.
  void apply(AfterTrainBatch, State& state);

  /// Logs the norm; by now the device has been waited for anyway, so that costs nothing.
  void apply(BatchEnd, State& state);

 private:
  [[nodiscard]] bool folds_now(const detail::Gradients& both, const State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/gradient_clipping.inl.hpp>
#endif
