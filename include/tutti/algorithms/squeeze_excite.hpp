// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/squeeze_excite.hpp>
#include <tutti/nn/surgery.hpp>

/// SqueezeExcite: gates on the channels behind convolutions.
namespace tutti {

/// Puts a gate behind every convolution of the model that is wide enough.
///
/// Source: Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018.
struct SqueezeExcite final {
  /// Inner width of the gates: from 1 on a number of channels, below 1 a fraction of the
  /// convolution's output channels; > 0.
  double latent_channels = 64;
  std::int64_t min_channels = 128;  ///< convolutions with fewer channels in or out stay; >= 1
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when no gate was put in

  static constexpr std::string_view name = "SqueezeExcite";
  using events = types<Init>;
  static constexpr About about{.required_on_load = true};
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<nn::Conv2d>>, id<adds_layers<nn::Linear>>},
      .runs_before = {{id<Factorize>,
                       "each half of a factored convolution would get a gate of its own"},
                      {id<BlurPool>, "the gate belongs behind the whole layer, its blur included"}},
  };

  /// Throws c10::ValueError for options that cannot be meant.
  constexpr void validate() const {
    expect(latent_channels > 0, "SqueezeExcite: latent_channels", latent_channels, "more than 0");
    expect(min_channels >= 1, "SqueezeExcite: min_channels", min_channels, "at least 1");
  }

  /// Changes the model, and logs `squeeze_excite/num_squeeze_excite_layers`: how many gated
  /// convolutions it has then.
  void apply(Init, State& state) const;
};

namespace functional {

/// Puts a gate behind the convolutions of `model`, as `options` says, and keeps `optimizers` in
/// step: a gate's weights join the group of the convolution's.
///
/// Gated are those with at least min_channels channels both in and out, except the ones inside a
/// gated layer already, so that a second application changes nothing. Their weights stay the same
/// tensors under the name `....conv.weight`.
/// Throws as SqueezeExcite::validate(); c10::Error (ValueError) when a gate would be less than one
/// channel wide; c10::Error when nothing was replaced and if_none is error.
/// Source: Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018; MosaicML Composer,
/// `composer.algorithms.squeeze_excite.apply_squeeze_excite`.
surgery::Report apply_squeeze_excite(torch::nn::Module& model, const SqueezeExcite& options = {},
                                     const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_squeeze_excite(torch::nn::Module& model,
                                                  const SqueezeExcite& options,
                                                  const surgery::Optimizers& optimizers) {
  options.validate();
  auto gated = [&](torch::nn::Conv2dImpl& conv,
                   const surgery::Visit& where) -> surgery::Replacement {
    if (where.inside<nn::SqueezeExciteConv2dImpl>()) {
      return surgery::Replacement::keep("gated already");
    }
    if (std::min(conv.options.in_channels(), conv.options.out_channels()) < options.min_channels) {
      return surgery::Replacement::keep("channels in or out below min_channels, which is " +
                                        std::to_string(options.min_channels));
    }
    return std::make_shared<nn::SqueezeExciteConv2dImpl>(conv, options.latent_channels);
  };
  return surgery::replace<nn::Conv2d>(
      model, gated,
      {.optimizers = optimizers, .if_none = options.if_none, .who = SqueezeExcite::name});
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void SqueezeExcite::apply(Init, State& state) const {
  functional::apply_squeeze_excite(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters({{"squeeze_excite/num_squeeze_excite_layers",
                                     surgery::count<nn::SqueezeExciteConv2d>(*state.model)}});
}

}  // namespace tutti

#endif
