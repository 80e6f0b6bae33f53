// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/blurpool.hpp>

namespace tutti::functional {

TUTTI_INLINE BlurPoolReport apply_blurpool(torch::nn::Module& model, const BlurPool& options,
                                           const surgery::Optimizers& optimizers) {
  options.validate();
  const surgery::Options how = {.optimizers = optimizers, .who = "BlurPool"};
  BlurPoolReport report;
  if (options.replace_maxpools) {
    auto blurred = [&](torch::nn::MaxPool2dImpl& pool) {
      return ::tutti::detail::make<nn::BlurMaxPool2dImpl>(pool.options, options.border);
    };
    report.maxpools = surgery::replace<nn::MaxPool2d>(model, blurred, how);
  }
  if (options.replace_convs) {
    auto blurred = [&](torch::nn::Conv2dImpl& conv,
                       const surgery::Visit& where) -> surgery::Replacement {
      const auto stride = *conv.options.stride();
      if (where.inside<nn::BlurConv2dImpl>()) {
        return surgery::Replacement::keep("blurred already");
      }
      if (std::max(stride[0], stride[1]) == 1) {
        return surgery::Replacement::keep("stride 1");
      }
      if (conv.options.in_channels() < options.min_channels) {
        return surgery::Replacement::keep("input channels below min_channels, which is " +
                                          std::to_string(options.min_channels));
      }
      return ::tutti::detail::make<nn::BlurConv2dImpl>(conv, options.blur_first, options.border);
    };
    report.convs = surgery::replace<nn::Conv2d>(model, blurred, how);
  }
  if (report.convs.replaced.empty() && report.maxpools.replaced.empty()) {
    surgery::Report all = report.maxpools;
    all.add(report.convs);
    surgery::report_none(options.if_none,
                         !options.replace_convs      ? "MaxPool2d"
                         : !options.replace_maxpools ? "strided Conv2d"
                                                     : "MaxPool2d or strided Conv2d",
                         how.who, all.kept);
  }
  return report;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void BlurPool::apply(Init, State& state) const {
  functional::apply_blurpool(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters(
      {{"blurpool/num_blurpool_layers", surgery::count<nn::BlurMaxPool2d>(*state.model)},
       {"blurpool/num_blurconv_layers", surgery::count<nn::BlurConv2d>(*state.model)}});
}

}  // namespace tutti
