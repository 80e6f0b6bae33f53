// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/weight_standardization.hpp>

namespace tutti::detail {

// The convolutions of the model: all are to be standardised but the last n, those ignored by name
// and those that would become zero.
TUTTI_INLINE Convolutions to_standardize(torch::nn::Module& model,
                                         const WeightStandardization& options) {
  Convolutions all;
  std::vector<const torch::nn::Module*> chosen;
  const auto convolves = [](const torch::nn::Module& module, std::int64_t fan_in) {
    return has_fan_in<torch::nn::Conv1dImpl>(module, fan_in) ||
           has_fan_in<torch::nn::Conv2dImpl>(module, fan_in) ||
           has_fan_in<torch::nn::Conv3dImpl>(module, fan_in);
  };
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
    if (!convolves(module, 1)) {
      continue;
    }
    if (std::any_of(options.ignore.begin(), options.ignore.end(),
                    [&](const Key& key) { return is_below(where.path, key); })) {
      all[&module] = "in the option ignore";
    } else {
      chosen.push_back(&module);
    }
  }
  const auto last = static_cast<std::size_t>(options.n_last_layers_ignore);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (i + last >= chosen.size()) {
      all[chosen[i]] = "among the last " + std::to_string(last) + ", as n_last_layers_ignore says";
    } else {
      all[chosen[i]] =
          convolves(*chosen[i], 2) ? "" : "one weight per output channel, which would become zero";
    }
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
