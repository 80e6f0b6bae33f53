// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/nn/weight_standardization.hpp>

/// WeightStandardization: convolutions with normalised weights.
namespace tutti {

/// Normalises the weights of the model's convolutions in every pass, channel by channel.
///
/// Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and Weight
/// Standardization", 2019.
struct WeightStandardization final {
  std::int64_t n_last_layers_ignore = 0;  ///< convolutions that stay, counted from the last; >= 0
  Keys ignore{};  ///< paths of modules whose convolutions stay, "head" or "layer1.0.conv1"
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when no layer was changed

  static constexpr std::string_view name = "WeightStandardization";
  using events = types<Init>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<nn::Conv2d>>},
      .runs_after = {{id<BlurPool>, "its convolutions are standardised too"},
                     {id<Factorize>, "a standardised weight cannot be factored"},
                     {id<SqueezeExcite>, "gates are put behind convolutions that are plain yet"},
                     {id<GhostBatchNorm>, one_order_of_surgeries},
                     {id<StochasticDepth>, one_order_of_surgeries}},
  };

  /// Throws c10::ValueError when n_last_layers_ignore is negative.
  constexpr void validate() const {
    expect(n_last_layers_ignore >= 0, "WeightStandardization: n_last_layers_ignore",
           n_last_layers_ignore, "0 or more");
  }

  /// Changes the model, and logs `WeightStandardization/num_weights_standardized`: how many
  /// convolutions are standardised then.
  void apply(Init, State& state) const;
};

namespace detail {

// All of the model, each with the reason why it stays; empty: it is to be standardised.
using Convolutions = std::unordered_map<const torch::nn::Module*, std::string>;

// A convolution whose output channels have so many weights each, or more.
template <class Plain>
bool has_fan_in(const torch::nn::Module& module, std::int64_t least) {
  const auto* conv = dynamic_cast<const Plain*>(&module);
  return conv != nullptr && conv->weight.size(0) > 0 &&
         conv->weight.numel() / conv->weight.size(0) >= least;
}

inline bool is_below(std::string_view path, std::string_view prefix) {
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '.');
}

template <class Layer>
void standardize(torch::nn::Module& model, const Convolutions& chosen, const surgery::Options& how,
                 surgery::Report& report) {
  using Plain = typename Layer::Impl::Plain;
  auto standardized = [&](Plain& conv, const surgery::Visit&) -> surgery::Replacement {
    const std::string& why = chosen.at(&conv);
    if (!why.empty()) {
      return surgery::Replacement::keep(why);
    }
    return std::make_shared<nn::WeightStandardizedImpl<Layer>>(conv);
  };
  report.add(surgery::replace<Layer>(model, standardized, how));
}

}  // namespace detail

namespace functional {

/// Lets the Conv1d, 2d and 3d layers of `model` normalise their weights in every pass, all but the
/// last ones and those named, as `options` says.
///
/// "Last" is in the order of surgery::walk(), that of registration; name the layers where another
/// is meant. Convolutions with one weight per output channel stay, for they would become zero.
/// The trained weights stay the same tensors, under the name
/// `....parametrizations.weight.original`. A second application changes nothing.
/// Throws as WeightStandardization::validate(), c10::Error (ValueError) when a path to ignore is
/// none of the model, and c10::Error when nothing was changed and if_none is error.
/// Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and Weight
/// Standardization", 2019; MosaicML Composer,
/// `composer.algorithms.weight_standardization.apply_weight_standardization`.
surgery::Report apply_weight_standardization(torch::nn::Module& model,
                                             const WeightStandardization& options = {},
                                             const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/weight_standardization.inl.hpp>
#endif
