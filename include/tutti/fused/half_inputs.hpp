// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>

/// Images in the precision in which a run computes.
namespace tutti::fused {

/// Gives the model its inputs in the type that autocast computes in, bf16 or fp16: half as many
/// bytes, which the first layer need not convert.
///
/// A model whose first layer is a convolution or a linear one computes what it does without, bit
/// for bit; one that begins otherwise begins in half precision. Nothing happens in a run of fp32.
struct HalfInputs final {
  static constexpr std::string_view name = "HalfInputs";
  using events = types<BeforeForward, EvalBeforeForward, PredictBeforeForward>;
  static constexpr Rules rules{.runs_last = ids<events>};

  /// A fused pass may write the inputs as this would leave them.
  [[nodiscard]] std::optional<at::ScalarType> wants_type(const State& state) const {
    switch (state.precision) {
      case Precision::amp_bf16:
      case Precision::bf16_true:
        return at::kBFloat16;
      case Precision::amp_fp16:
        return at::kHalf;
      case Precision::fp32:
        break;
    }
    return std::nullopt;
  }

  /// Rounds the inputs, where they are fp32.
  void apply(BeforeForward, State& state) const { round(state); }
  void apply(EvalBeforeForward, State& state) const { round(state); }
  void apply(PredictBeforeForward, State& state) const { round(state); }

 private:
  void round(State& state) const {
    const auto type = wants_type(state);
    at::Tensor& x = state.batch.inputs();
    if (type && x.scalar_type() == at::kFloat) {
      x = x.to(*type);
    }
  }
};

}  // namespace tutti::fused
