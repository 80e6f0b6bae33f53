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
#include <tutti/nn/spectral_norm.hpp>
#include <tutti/nn/surgery.hpp>

/// SpectralNorm: weights divided by their largest singular value.
namespace tutti {

/// Divides the weights of layers by their largest singular value, so that a layer stretches
/// nothing.
///
/// Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", ICLR 2018.
struct SpectralNorm final {
  Keys layers{};  ///< which layers, as globs of their paths, "discriminator.*"; empty: all
  std::int64_t n_power_iterations = 1;  ///< in each pass of the training; >= 1
  double eps = 1e-12;                   ///< below which lengths are not divided by; >= 0
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when no layer was changed

  static constexpr std::string_view name = "SpectralNorm";
  static constexpr About about{.reads_batch = false};
  using events = types<Init>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<nn::Conv2d, nn::Linear>>},
      .runs_after = {{id<Factorize>, "a parametrised weight cannot be factored"},
                     {id<BlurPool>, "its convolutions are parametrised too"},
                     {id<SqueezeExcite>, "gates are put behind convolutions that are plain yet"},
                     {id<GatedLinearUnits>, "the layers of its blocks are parametrised too"}},
      .conflicts_with = {{id<WeightStandardization>, "a weight has one parametrisation"},
                         {id<LoRA>,
                          "the weight that an adapter stands beside is made anew in each pass"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(n_power_iterations >= 1, "SpectralNorm: n_power_iterations", n_power_iterations,
           "at least 1");
    expect(eps >= 0, "SpectralNorm: eps", eps, "0 or more");
  }

  /// Changes the model, and logs `spectral_norm/num_layers`: how many layers have it then.
  void apply(Init, State& state) const;
};

namespace functional {

/// Lets the Linear, Conv1d, 2d and 3d layers of `model` divide their weights by their largest
/// singular values, as `options` says.
///
/// The trained weights stay the same tensors, under the name
/// `....parametrizations.weight.original`. The vectors of the power iteration are buffers, drawn
/// from LibTorch's default generator. A layer that has it already stays. Throws as
/// SpectralNorm::validate(), c10::Error (ValueError) when a glob matches no such layer, and
/// c10::Error when nothing was changed and if_none is error. Source: PyTorch,
/// `torch.nn.utils.parametrizations.spectral_norm`.
surgery::Report apply_spectral_norm(torch::nn::Module& model, const SpectralNorm& options = {},
                                    const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_spectral_norm(torch::nn::Module& model,
                                                 const SpectralNorm& options,
                                                 const surgery::Optimizers& optimizers) {
  options.validate();
  const SpectralNormOptions how{.n_power_iterations = options.n_power_iterations,
                                .eps = options.eps};
  return detail::parametrize<nn::SpectralNormed>(
      model, options.layers, options.if_none, {.optimizers = optimizers, .who = SpectralNorm::name},
      [&]<class Layer>(detail::LayerKind<Layer>, const typename Layer::Impl::Plain& layer) {
        return std::make_shared<nn::SpectralNormedImpl<Layer>>(layer, how);
      });
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void SpectralNorm::apply(Init, State& state) const {
  functional::apply_spectral_norm(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters(
      {{"spectral_norm/num_layers", surgery::count<nn::SpectralNormed>(*state.model)}});
}

}  // namespace tutti

#endif
