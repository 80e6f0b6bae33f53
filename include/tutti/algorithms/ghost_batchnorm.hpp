// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/ghost_batchnorm.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/nn/sync_batchnorm.hpp>

/// GhostBatchNorm: batch normalisation over parts of a batch.
namespace tutti {

/// Lets the batch normalisations of the model look at small parts of the batch, each on its own.
///
/// Source: Hoffer et al., "Train longer, generalize better", NeurIPS 2017; Dimitriou and
/// Arandjelovic, "A New Look at Ghost Normalization", 2020.
struct GhostBatchNorm final {
  std::int64_t ghost_batch_size = 32;  ///< examples of a part at most; >= 1, for vectors >= 2
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when no layer was wrapped

  static constexpr std::string_view name = "GhostBatchNorm";
  using events = types<Init>;
  static constexpr About about{.required_on_load = true};
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<uses_batch_statistics>,
               id<replaces_layers<nn::BatchNorm1d, nn::BatchNorm2d>>},
      .runs_after = {{id<SqueezeExcite>, one_order_of_surgeries},
                     {id<Factorize>, one_order_of_surgeries},
                     {id<BlurPool>, one_order_of_surgeries}},
      .checked_with = {{id<SelectiveBackprop>,
                        "what SelectiveBackprop leaves of a batch must not be less than "
                        "ghost_batch_size; the first batch that is gets refused"}},
  };

  /// Throws c10::ValueError when ghost_batch_size is out of range.
  constexpr void validate() const {
    expect(ghost_batch_size >= 1, "GhostBatchNorm: ghost_batch_size", ghost_batch_size,
           "at least 1");
  }

  /// Changes the model, and logs `GhostBatchNorm/num_new_modules`: how many normalisations work on
  /// parts of a batch then.
  void apply(Init, State& state) const;
};

namespace detail {

template <class Layer>
void ghost(torch::nn::Module& model, const GhostBatchNorm& options, surgery::Options how,
           surgery::Report& report) {
  using Plain = typename Layer::Impl::Plain;
  auto wrapped = [&](Plain& layer, const surgery::Visit& where) -> surgery::Replacement {
    if (where.inside<nn::GhostBatchNorm>()) {
      return surgery::Replacement::keep("wrapped already");
    }
    if (dynamic_cast<nn::SyncBatchNorm*>(&layer) != nullptr) {
      return surgery::Replacement::keep("takes the batches of all ranks together");
    }
    return std::make_shared<nn::GhostBatchNormImpl<Layer>>(layer, options.ghost_batch_size);
  };
  report.add(surgery::replace<Layer>(model, wrapped, how));
}

}  // namespace detail

namespace functional {

/// Wraps the BatchNorm1d, 2d and 3d layers of `model` so that in training they normalise parts of
/// at most ghost_batch_size examples on their own.
///
/// Parameters and statistics stay the same tensors, shared by the parts, under the names
/// `....batchnorm.weight` and so on. A layer that is wrapped already stays, so that a second
/// application changes nothing; and so does an nn::SyncBatchNorm.
/// Throws as GhostBatchNorm::validate(), and c10::Error when nothing was wrapped and if_none is
/// error.
/// Source: Hoffer et al., "Train longer, generalize better", NeurIPS 2017; MosaicML Composer,
/// `composer.algorithms.ghost_batchnorm.apply_ghost_batchnorm`.
surgery::Report apply_ghost_batchnorm(torch::nn::Module& model, const GhostBatchNorm& options = {},
                                      const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_ghost_batchnorm(torch::nn::Module& model,
                                                   const GhostBatchNorm& options,
                                                   const surgery::Optimizers& optimizers) {
  options.validate();
  const surgery::Options how = {.optimizers = optimizers, .who = GhostBatchNorm::name};
  surgery::Report report;
  detail::ghost<nn::BatchNorm1d>(model, options, how, report);
  detail::ghost<nn::BatchNorm2d>(model, options, how, report);
  detail::ghost<nn::BatchNorm3d>(model, options, how, report);
  if (report.replaced.empty()) {
    surgery::report_none(options.if_none, "BatchNorm1d, 2d or 3d", how.who, report.kept);
  }
  return report;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void GhostBatchNorm::apply(Init, State& state) const {
  functional::apply_ghost_batchnorm(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters(
      {{"GhostBatchNorm/num_new_modules", surgery::count<nn::GhostBatchNorm>(*state.model)}});
}

}  // namespace tutti

#endif
