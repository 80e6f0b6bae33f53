// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/blur.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/nn/surgery.hpp>

/// BlurPool: low-pass filters before sub-sampling.
namespace tutti {

/// Replaces strided convolutions and max-pools of the model by blurred ones.
///
/// Source: Zhang, "Making Convolutional Networks Shift-Invariant Again", ICML 2019.
struct BlurPool final {
  bool replace_convs = true;     ///< convolutions with a stride above 1 get a blur
  bool replace_maxpools = true;  ///< every MaxPool2d gets one, also with stride 1
  /// Convolutions: blur the input. Else convolve with stride 1 and blur with the stride.
  bool blur_first = true;
  std::int64_t min_channels = 16;  ///< convolutions with fewer input channels stay; >= 1
  BlurBorder border = BlurBorder::zero;
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when nothing was replaced

  using events = types<Init>;
  static constexpr About about{.required_on_load = true};
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<>>, id<adds_layers<nn::Conv2d>>},
  };

  /// Throws c10::ValueError for options that cannot be meant.
  constexpr void validate() const {
    expect(replace_convs || replace_maxpools,
           "BlurPool: replace_convs and replace_maxpools are both false, so it would do nothing; "
           "set one, or take BlurPool out of the recipe.");
    expect(min_channels >= 1, "BlurPool: min_channels", min_channels, "at least 1");
  }

  /// Changes the model, and logs `blurpool/num_blurpool_layers` and
  /// `blurpool/num_blurconv_layers`: how many blurred layers it has then.
  void apply(Init, State& state) const;
};

namespace functional {

/// What apply_blurpool did.
struct BlurPoolReport {
  surgery::Report convs;
  surgery::Report maxpools;
};

/// Replaces layers of `model` by blurred ones, as `options` says, and keeps `optimizers` in step.
///
/// Convolutions: those with a stride above 1 and at least min_channels input channels, except the
/// ones inside a BlurConv2d already, so that a second application changes nothing. Their weights
/// stay the same tensors under the name `....conv.weight`. Pools: every MaxPool2d.
/// Throws as BlurPool::validate(), and c10::Error when nothing was replaced and if_none is error.
BlurPoolReport apply_blurpool(torch::nn::Module& model, const BlurPool& options = {},
                              const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/blurpool.inl.hpp>
#endif
