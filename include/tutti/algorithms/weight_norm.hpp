// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <tutti/algorithms/detail/parametrize.hpp>
#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/nn/weight_norm.hpp>

/// WeightNorm: weights trained as lengths and directions.
namespace tutti {

/// Trains the weights of layers as a length and a direction for each output.
///
/// Source: Salimans and Kingma, "Weight Normalization", NeurIPS 2016.
struct WeightNorm final {
  Keys layers{};  ///< which layers, as globs of their paths, "head", "block*.conv?"; empty: all
  std::int64_t dim = 0;  ///< of the weight, along which each has its length; 0, or -1: one for all
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when no layer was changed

  static constexpr std::string_view name = "WeightNorm";
  static constexpr About about{.reads_batch = false};
  using events = types<Init>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<nn::Conv2d, nn::Linear>>},
      .runs_after = {{id<Factorize>, "a parametrised weight cannot be factored"},
                     {id<BlurPool>, "its convolutions are parametrised too"},
                     {id<SqueezeExcite>, "gates are put behind convolutions that are plain yet"},
                     {id<GatedLinearUnits>, "the layers of its blocks are parametrised too"}},
      .conflicts_with = {{id<SpectralNorm>, "a weight has one parametrisation"},
                         {id<WeightStandardization>, "a weight has one parametrisation"},
                         {id<LoRA>,
                          "the weight that an adapter stands beside is made anew in each pass"}},
  };

  /// Throws c10::ValueError when dim is neither 0 nor -1.
  constexpr void validate() const {
    expect(dim == 0 || dim == -1, "WeightNorm: dim", dim,
           "0, a length for each output, or -1, one for the whole weight");
  }

  /// Changes the model, and logs `weight_norm/num_layers`: how many layers have it then.
  void apply(Init, State& state) const;
};

namespace functional {

/// Lets the Linear, Conv1d, 2d and 3d layers of `model` train lengths and directions, as `options`
/// says.
///
/// The old weight's tensor is the directions, `....parametrizations.weight.original1`; the lengths,
/// `...original0`, join its optimizer group. What the model computes stays the same. A layer that
/// has it already stays.
/// Throws as WeightNorm::validate(), c10::Error (ValueError) when a glob matches no such layer, and
/// c10::Error when nothing was changed and if_none is error.
/// Source: PyTorch, `torch.nn.utils.parametrizations.weight_norm`.
surgery::Report apply_weight_norm(torch::nn::Module& model, const WeightNorm& options = {},
                                  const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_weight_norm(torch::nn::Module& model, const WeightNorm& options,
                                               const surgery::Optimizers& optimizers) {
  options.validate();
  return detail::parametrize<nn::WeightNormed>(
      model, options.layers, options.if_none, {.optimizers = optimizers, .who = WeightNorm::name},
      [&]<class Layer>(detail::LayerKind<Layer>, const typename Layer::Impl::Plain& layer) {
        return std::make_shared<nn::WeightNormedImpl<Layer>>(layer, options.dim);
      });
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void WeightNorm::apply(Init, State& state) const {
  functional::apply_weight_norm(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters(
      {{"weight_norm/num_layers", surgery::count<nn::WeightNormed>(*state.model)}});
}

}  // namespace tutti

#endif
