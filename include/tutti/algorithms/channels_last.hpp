// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/surgery.hpp>

/// ChannelsLast: images in memory pixel by pixel.
namespace tutti {

namespace functional {

/// `x` with the channels of a pixel next to each other in memory: dimension 1 gets the smallest
/// stride.
///
/// x: [N, C, H, W] or [N, C, D, H, W]; of other shapes it is returned as it is.
/// Returns the same shape and values; x itself when its memory is in that order already.
at::Tensor channels_last(const at::Tensor& x);

/// Stores all parameters and buffers of `model` that have four or five dimensions with the
/// channels last.
///
/// They stay the same tensors with the same values, so optimizers do not notice.
/// Returns how many there are.
/// Source: "Channels Last Memory Format in PyTorch"; MosaicML Composer,
/// `composer.algorithms.channels_last.apply_channels_last`.
std::int64_t apply_channels_last(torch::nn::Module& model);

}  // namespace functional

/// Keeps weights and images in memory pixel by pixel (NHWC), which convolutions on new hardware
/// want.
///
/// Source: "Channels Last Memory Format in PyTorch".
struct ChannelsLast final {
  bool convert_inputs = true;  ///< else the first convolution does it, in every pass
  Key input_key{};             ///< the batch's tensor to convert; empty: batch.inputs()
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when no tensor has 4 or 5 dimensions

  static constexpr std::string_view name = "ChannelsLast";
  using events = types<Init, AfterLoad, BeforeForward, EvalBeforeForward, PredictBeforeForward>;
  static constexpr Rules rules{
      .tags = {id<changes_model>},
      .runs_after = {{id<changes_model>, "new weights are made channel by channel"}},
      .runs_last = ids<events>,
  };

  bool match(BeforeForward, const State&) const { return convert_inputs; }
  bool match(EvalBeforeForward, const State&) const { return convert_inputs; }
  bool match(PredictBeforeForward, const State&) const { return convert_inputs; }

  /// A fused pass may write the inputs as this would leave them.
  [[nodiscard]] bool wants_channels_last(const State& state) const {
    return convert_inputs && detail::means_inputs(state.batch, input_key);
  }

  /// Converts the weights.
  void apply(Init, State& state) const;

  /// Once more, for weights that came in another order.
  void apply(AfterLoad, State& state) const { functional::apply_channels_last(*state.model); }

  /// Converts the inputs.
  void apply(BeforeForward, State& state) const { convert(state.batch); }
  void apply(EvalBeforeForward, State& state) const { convert(state.batch); }
  void apply(PredictBeforeForward, State& state) const { convert(state.batch); }

 private:
  void convert(Batch& batch) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/channels_last.inl.hpp>
#endif
