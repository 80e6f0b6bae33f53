// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/gated_feed_forward.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/surgery.hpp>

/// GatedLinearUnits: gates in the feed-forward blocks of transformers.
namespace tutti {

namespace functional {

/// Exchanges the feed-forward half of every transformer block of `model` for a gated one.
///
/// model: with blocks that derive from nn::GatedHost, as BERT's do. optimizers: kept in step, with
/// any groups. act_fn: none: each block's own. The biases: of the gate and of what it gates.
/// Weights that keep their shape stay the same tensors: `intermediate.dense` becomes
/// `output.gated_layer`, `output.dense` `output.wo`, `output.LayerNorm` `output.layernorm`; only
/// `output.non_gated_layer` is new. A second application changes nothing.
/// Returns the paths of the blocks that were changed.
/// Throws c10::Error when the model has no such block and if_none is error.
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020; MosaicML Composer,
/// `composer.algorithms.gated_linear_units.apply_gated_linear_units`.
std::vector<std::string> apply_gated_linear_units(torch::nn::Module& model,
                                                  const surgery::Optimizers& optimizers = {},
                                                  Maybe<nn::Activation> act_fn = {},
                                                  bool gated_layer_bias = false,
                                                  bool non_gated_layer_bias = false,
                                                  surgery::IfNone if_none = surgery::IfNone::error);

}  // namespace functional

/// Replaces the feed-forward halves of transformer blocks by gated ones.
///
/// Source: Dauphin et al., "Language Modeling with Gated Convolutional Networks", ICML 2017;
/// Shazeer, "GLU Variants Improve Transformer", 2020.
struct GatedLinearUnits final {
  Maybe<nn::Activation> act_fn{};                    ///< of the gate; not set: what the block has
  bool gated_layer_bias = false;                     ///< the gate has a bias
  bool non_gated_layer_bias = false;                 ///< what is gated has a bias
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no such block

  static constexpr std::string_view name = "GatedLinearUnits";
  using events = types<Init>;
  static constexpr About about{.required_on_load = true};
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<adds_layers<nn::Linear>>, id<adds_layers<nn::LayerNorm>>},
      .runs_before = {{id<LowPrecisionLayerNorm>, "the new blocks have layer norms of their own"},
                      {id<Factorize>, "factors of the old block would be thrown away with it"}},
  };

  template <class Model>
  static constexpr bool supports = offers<Model, has_feed_forward>;

  constexpr void validate() const {}

  void apply(Init, State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void GatedLinearUnits::apply(Init, State& state) const {
  functional::apply_gated_linear_units(*state.model, state.optimizers, act_fn, gated_layer_bias,
                                       non_gated_layer_bias, if_none);
}

}  // namespace tutti

namespace tutti::functional {

TUTTI_INLINE std::vector<std::string> apply_gated_linear_units(
    torch::nn::Module& model, const surgery::Optimizers& optimizers, Maybe<nn::Activation> act_fn,
    bool gated_layer_bias, bool non_gated_layer_bias, surgery::IfNone if_none) {
  std::int64_t hosts = 0;
  const auto gated = [&](nn::GatedHost& host) -> std::shared_ptr<nn::GatedFeedForwardImpl> {
    ++hosts;
    if (host.gated()) {
      return nullptr;
    }
    const nn::FeedForwardParts parts = host.feed_forward_parts();
    return std::make_shared<nn::GatedFeedForwardImpl>(parts, act_fn ? *act_fn : parts.activation,
                                                      gated_layer_bias, non_gated_layer_bias);
  };
  std::vector<std::string> changed = surgery::gate(model, gated, optimizers);
  if (hosts == 0) {
    surgery::report_none(if_none, "block that derives from tutti::nn::GatedHost",
                         "GatedLinearUnits");
  }
  return changed;
}

}  // namespace tutti::functional

#endif
