// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes tutti's surgery policies from the keyword arguments of the reference's.

#include <vector>

#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/ghost_batchnorm.hpp>
#include <tutti/algorithms/low_precision_groupnorm.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/algorithms/weight_standardization.hpp>

#include "golden/arguments.hpp"
#include "golden/runner.hpp"

namespace golden {

inline std::vector<std::int64_t> integers(const Json& list) {
  std::vector<std::int64_t> out;
  for (const Json& value : list.array()) {
    out.push_back(value.integer());
  }
  return out;
}

inline tutti::SqueezeExcite make_squeeze_excite(const Json& args) {
  const Arguments a(args, "SqueezeExcite");
  tutti::SqueezeExcite options;
  options.latent_channels = a.number("latent_channels", options.latent_channels);
  options.min_channels = a.integer("min_channels", options.min_channels);
  a.done();
  return options;
}

inline tutti::GhostBatchNorm make_ghost_batchnorm(const Json& args) {
  const Arguments a(args, "GhostBatchNorm");
  tutti::GhostBatchNorm options;
  options.ghost_batch_size = a.integer("ghost_batch_size", options.ghost_batch_size);
  options.if_none = tutti::surgery::IfNone::ignore;
  a.done();
  return options;
}

/// LowPrecisionLayerNorm and LowPrecisionGroupNorm.
template <class LowPrecision>
LowPrecision make_low_precision(const Json& args) {
  const Arguments a(args, std::string(LowPrecision::name));
  const auto apply_at = one_of<tutti::ApplyAt>(a, "apply_at", "init",
                                               {{"init", tutti::ApplyAt::init},
                                                {"before_load", tutti::ApplyAt::before_load},
                                                {"after_load", tutti::ApplyAt::after_load}});
  a.done();
  return {.apply_at = apply_at};
}

/// The reference's options of both forms of stochastic depth, but for the warm-up.
inline tutti::StochasticDepth stochastic_depth_options(const Arguments& a) {
  using tutti::DropDistribution;
  using tutti::DropMethod;
  return {.target_layer_name = tutti::Key(a.text("target_layer_name", "ResNetBottleneck")),
          .stochastic_method =
              one_of<DropMethod>(a, "stochastic_method", "block",
                                 {{"block", DropMethod::block}, {"sample", DropMethod::sample}}),
          .drop_rate = a.number("drop_rate", 0.2),
          .drop_distribution = one_of<DropDistribution>(
              a, "drop_distribution", "linear",
              {{"linear", DropDistribution::linear}, {"uniform", DropDistribution::uniform}}),
          .if_none = tutti::surgery::IfNone::ignore};
}

/// A time as a string, or a part of the run as a number.
inline tutti::Time drop_warmup(const Arguments& a) {
  return a.has("drop_warmup") && a.json("drop_warmup").is_string()
             ? tutti::Time::parse(a.text("drop_warmup", ""))
             : tutti::Time::duration(a.number("drop_warmup", 0));
}

inline tutti::StochasticDepth make_stochastic_depth(const Json& args) {
  const Arguments a(args, "StochasticDepth");
  tutti::StochasticDepth options = stochastic_depth_options(a);
  options.drop_warmup = drop_warmup(a);
  a.done();
  return options;
}

inline tutti::WeightStandardization make_weight_standardization(const Json& args) {
  const Arguments a(args, "WeightStandardization");
  const tutti::WeightStandardization options{.n_last_layers_ignore =
                                                 a.integer("n_last_layers_ignore", 0)};
  a.done();
  return options;
}

/// Both forms of Factorize have these options, with other defaults. The reference gives every
/// factored convolution a bias.
template <class Options>
Options make_factorize(const Json& args) {
  const Arguments a(args, "Factorize");
  Options options;
  options.factorize_convs = a.flag("factorize_convs", options.factorize_convs);
  options.factorize_linears = a.flag("factorize_linears", options.factorize_linears);
  options.min_channels = a.integer("min_channels", options.min_channels);
  options.latent_channels = a.number("latent_channels", options.latent_channels);
  options.min_features = a.integer("min_features", options.min_features);
  options.latent_features = a.number("latent_features", options.latent_features);
  options.add_bias = true;
  a.done();
  return options;
}

}  // namespace golden
