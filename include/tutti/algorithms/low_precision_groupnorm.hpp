// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <tutti/algorithms/detail/low_precision.hpp>
#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/low_precision.hpp>
#include <tutti/nn/surgery.hpp>

/// LowPrecisionGroupNorm: group normalisation in half precision.
namespace tutti {

namespace functional {

/// Replaces the GroupNorm layers of `model` by ones that run in the autocast type of their input's
/// device, as the layers around them do.
///
/// precision: the run's; fp32 changes nothing and warns. Parameters stay the same tensors under
/// their names, so optimizers keep their state. Layers of a derived class of your own stay, those
/// that run in low precision already as well, so that a second application changes nothing.
/// Throws c10::Error when nothing was replaced and if_none is error.
/// Source: MosaicML Composer, `composer.algorithms.low_precision_groupnorm`.
surgery::Report apply_low_precision_groupnorm(torch::nn::Module& model, Precision precision,
                                              const surgery::Optimizers& optimizers = {},
                                              surgery::IfNone if_none = surgery::IfNone::ignore);

}  // namespace functional

/// Runs the GroupNorm layers in half precision under mixed precision; autocast alone runs them in
/// fp32.
///
/// Source: MosaicML Composer, `composer.algorithms.low_precision_groupnorm`.
struct LowPrecisionGroupNorm final {
  ApplyAt apply_at = ApplyAt::init;                  ///< when the model is changed
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when there is no GroupNorm

  static constexpr std::string_view name = "LowPrecisionGroupNorm";
  using events = types<Init, BeforeLoad, AfterLoad>;
  static constexpr About about{.required_on_load = true};
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<nn::GroupNorm>>},
      .runs_last = ids<events>,
  };

  /// Throws c10::ValueError when apply_at is none of its values.
  constexpr void validate() const {
    expect(apply_at <= ApplyAt::after_load, "LowPrecisionGroupNorm: apply_at",
           static_cast<int>(apply_at), "a value of ApplyAt");
  }

  bool match(Init, const State&) const { return apply_at == ApplyAt::init; }
  bool match(BeforeLoad, const State&) const { return apply_at == ApplyAt::before_load; }
  bool match(AfterLoad, const State&) const { return apply_at == ApplyAt::after_load; }

  /// Changes the model; warns in an fp32 run.
  void apply(Init, State& state) const { change(state); }
  void apply(BeforeLoad, State& state) const { change(state); }
  void apply(AfterLoad, State& state) const { change(state); }

 private:
  void change(State& state) const {
    functional::apply_low_precision_groupnorm(*state.model, state.precision, state.optimizers,
                                              if_none);
  }
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_low_precision_groupnorm(torch::nn::Module& model,
                                                           Precision precision,
                                                           const surgery::Optimizers& optimizers,
                                                           surgery::IfNone if_none) {
  const surgery::Options options{
      .optimizers = optimizers, .if_none = if_none, .who = "LowPrecisionGroupNorm"};
  if (!::tutti::detail::autocasts(precision, options.who)) {
    return {};
  }
  return ::tutti::detail::lower_precision<nn::GroupNorm, nn::LowPrecisionGroupNorm>(model, options);
}

}  // namespace tutti::functional

#endif
