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

template <class Plain>
bool has_fan_in(const torch::nn::Module& module) {
  const auto* conv = dynamic_cast<const Plain*>(&module);
  return conv != nullptr && conv->weight.size(0) > 0 &&
         conv->weight.numel() / conv->weight.size(0) > 1;
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

namespace tutti::detail {

// The convolutions of the model: all are to be standardised but the last n and those ignored by
// name.
TUTTI_INLINE Convolutions to_standardize(torch::nn::Module& model,
                                         const WeightStandardization& options) {
  Convolutions all;
  std::vector<const torch::nn::Module*> chosen;
  const std::vector<surgery::Visit> visits = surgery::walk(model);
  for (const std::string_view key : options.ignore) {
    TUTTI_CHECK_VALUE(std::any_of(visits.begin(), visits.end(),
                                  [&](const surgery::Visit& where) { return where.path == key; }),
                      "WeightStandardization: ignore has \"", key,
                      "\", and the model has no module of that ",
                      "path; write one as in named_modules(), \"layer1.0.conv1\"");
  }
  for (const surgery::Visit& where : visits) {
    const torch::nn::Module& module = *where.module;
    const bool convolves = has_fan_in<torch::nn::Conv1dImpl>(module) ||
                           has_fan_in<torch::nn::Conv2dImpl>(module) ||
                           has_fan_in<torch::nn::Conv3dImpl>(module);
    if (!convolves) {
      all[&module] = "one weight per output channel, which would become zero";
    } else if (std::any_of(options.ignore.begin(), options.ignore.end(),
                           [&](const Key& key) { return is_below(where.path, key); })) {
      all[&module] = "in the option ignore";
    } else {
      chosen.push_back(&module);
    }
  }
  const auto last = static_cast<std::size_t>(options.n_last_layers_ignore);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    all[chosen[i]] = i + last < chosen.size() ? ""
                                              : "among the last " + std::to_string(last) +
                                                    ", as n_last_layers_ignore says";
  }
  return all;
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_weight_standardization(torch::nn::Module& model,
                                                          const WeightStandardization& options,
                                                          const surgery::Optimizers& optimizers) {
  options.validate();
  const surgery::Options how = {.optimizers = optimizers, .who = WeightStandardization::name};
  const detail::Convolutions chosen = detail::to_standardize(model, options);
  surgery::Report report;
  detail::standardize<nn::Conv1d>(model, chosen, how, report);
  detail::standardize<nn::Conv2d>(model, chosen, how, report);
  detail::standardize<nn::Conv3d>(model, chosen, how, report);
  if (report.replaced.empty()) {
    surgery::for_each<nn::WeightStandardized>(
        model, [&](nn::WeightStandardized&, const surgery::Visit& where) {
          report.kept.push_back({where.path, "standardised already"});
        });
    surgery::report_none(options.if_none, "convolution", how.who, report.kept);
  }
  return report;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void WeightStandardization::apply(Init, State& state) const {
  functional::apply_weight_standardization(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters({{"WeightStandardization/num_weights_standardized",
                                     surgery::count<nn::WeightStandardized>(*state.model)}});
}

}  // namespace tutti

#endif
