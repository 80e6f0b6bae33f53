// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/engine.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/pixels.hpp>

/// Bytes of images become floats, as a policy of a recipe and as a stage of a fused pass.
namespace tutti::fused {

namespace detail {

// Step by step, as the pass rounds, where there is none for the device.
inline at::Tensor scale_in_steps(const at::Tensor& x, const Scale& scale) {
  const auto channels = [&](const std::vector<double>& values) {
    at::Tensor row(at::detail::empty_cpu({std::ssize(values), 1, 1}, at::kFloat,
                                         /*pin_memory=*/false, std::nullopt));
    auto* data = row.mutable_data_ptr<float>();
    for (const double value : values) {
      *data++ = static_cast<float>(value);
    }
    return row.to(x.device(), /*non_blocking=*/true);
  };
  at::Tensor out = x.to(at::kFloat).div_(scale.divisor);
  if (!scale.mean.empty()) {
    out.sub_(channels(scale.mean));
  }
  return scale.std.empty() ? out : out.div_(channels(scale.std));
}

}  // namespace detail

/// Bytes become floats from 0 to 1, less the mean, divided by the standard deviation: what
/// ImageLoader does.
///
/// In a recipe it takes the batches of loaders that deliver bytes, in training, evaluation and
/// prediction, and the policies beside it that say what they do to a pixel run together with it in
/// one pass over the images.
struct Normalize final {
  std::vector<double> mean{};  ///< of the channels, of values from 0 to 1; empty: 0
  std::vector<double> std{};   ///< likewise; > 0; empty: 1
  double divisor = 255;        ///< what bytes are divided by first; 1 leaves them 0 to 255; > 0
  bool fuse = true;  ///< with the policies beside it; else all run one after the other, with the
                     ///< same results

  static constexpr std::string_view name = "Normalize";
  using events = types<AfterDataloader, EvalBeforeForward, PredictBeforeForward>;
  static constexpr Rules rules{
      .runs_before = {{id<selects_examples>, "examples are chosen by what the model will see"}},
      .runs_first = ids<events>,
  };

  /// The engine that fuses.
  template <class Base>
  using engine = Engine<Base>;

  /// Throws c10::ValueError when a value of std, or divisor, is not above 0.
  void validate() const {
    expect(divisor > 0, "Normalize: divisor", divisor, "more than 0");
    for (const double value : std) {
      expect(value > 0, "Normalize: a value of std", value, "more than 0");
    }
  }

  /// Makes floats of the inputs.
  /// Throws c10::ValueError when they are no images of bytes.
  void apply(AfterDataloader, State& state) const { convert(state); }
  void apply(EvalBeforeForward, State& state) const { convert(state); }
  void apply(PredictBeforeForward, State& state) const { convert(state); }

  /// Throws c10::ValueError when mean or std has not one value for each channel.
  [[nodiscard]] Scale pixels(const Frame& frame) const {
    const auto fits = [&](const std::vector<double>& values) {
      return values.empty() || std::ssize(values) == frame.channels;
    };
    TUTTI_CHECK_VALUE(fits(mean) && fits(std), "Normalize: mean has ", mean.size(),
                      " values and std ", std.size(), ", expected none or one for each of ",
                      frame.channels, " channels");
    return {.divisor = divisor, .mean = mean, .std = std};
  }

 private:
  void convert(State& state) const {
    at::Tensor& x = state.batch.inputs();
    TUTTI_CHECK_VALUE(x.dim() == 4 && x.scalar_type() == at::kByte, "Normalize: the inputs from \"",
                      state.dataloader_label, "\" are ", x.scalar_type(), x.sizes(),
                      ", expected bytes, uint8 [N, C, H, W]; let the loader deliver images as they "
                      "are (ImageLoader: to_float = false), or leave Normalize out");
    const Frame frame{x.size(0), x.size(1), x.size(2), x.size(3)};
    const Scale scale = pixels(frame);
    const bool has_pass = x.is_cpu() || (detail::has_kernels && x.is_cuda());
    x = has_pass ? Plan<Scale>(frame, scale)(x, x.suggest_memory_format())
                 : detail::scale_in_steps(x, scale);
  }
};

}  // namespace tutti::fused
