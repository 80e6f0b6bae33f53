// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// Shows some of the images that the model is given, and what it makes of them.
///
/// Mode `input`: at BeforeForward, in batches (or epochs) whose number is a multiple of the
/// interval, the first images of the batch as `Images/Train`, as algorithms have left them; of the
/// first batch of each evaluation as `Images/Eval`. Mode `segmentation`: likewise, at BeforeLoss
/// and EvalAfterForward, with two masks: `prediction`, the class with the largest output [N, C, H,
/// W], and `ground_truth`, from targets [N, H, W] or one-hot [N, C, H, W]; negative classes, which
/// are ignored, become the number of classes. Nothing is done when no destination takes images.
/// Source: MosaicML Composer, `composer.callbacks.ImageVisualizer`.
struct ImageVisualizer final {
  /// What is shown.
  enum class Mode : std::uint8_t { input, segmentation };

  Time interval = "100ba";      ///< in ba or ep
  Mode mode = Mode::input;      ///< images alone, or with masks
  std::int64_t num_images = 8;  ///< of a batch, at most; >= 1
  bool channels_last = false;   ///< images are [N, H, W, C]
  Key input_key{};              ///< the batch's images; empty: batch.inputs()
  Key target_key{};             ///< the batch's masks; empty: batch.targets()

  /// What it holds while it runs; not an option.
  struct Run {
    std::int64_t last = -1;    ///< when it last showed training images
    bool eval_is_due = false;  ///< the next batch of this evaluation is to be shown
  } run{};

  static constexpr std::string_view name = "ImageVisualizer";
  using events =
      types<FitStart, BeforeForward, BeforeLoss, EvalStart, EvalBeforeForward, EvalAfterForward>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    const TimeUnit unit = interval.unit();
    expect((unit == TimeUnit::batch || unit == TimeUnit::epoch) && interval.value() >= 1,
           "ImageVisualizer: interval", interval, "at least 1ba or 1ep");
    expect(num_images >= 1, "ImageVisualizer: num_images", num_images, "at least 1");
  }

  bool match(BeforeForward, const State& state) const {
    return mode == Mode::input && train_is_due(state);
  }
  bool match(BeforeLoss, const State& state) const {
    return mode == Mode::segmentation && train_is_due(state);
  }
  bool match(EvalBeforeForward, const State& state) const {
    return mode == Mode::input && run.eval_is_due && state.logger.wants_images();
  }
  bool match(EvalAfterForward, const State& state) const {
    return mode == Mode::segmentation && run.eval_is_due && state.logger.wants_images();
  }

  void apply(FitStart, const State&) { run.last = -1; }
  void apply(EvalStart, const State&) { run.eval_is_due = true; }

  /// Throws c10::Error when the images have neither three nor four dimensions.
  void apply(BeforeForward, const State& state);
  void apply(EvalBeforeForward, const State& state);
  /// Throws c10::Error also when outputs or targets are not those of a segmentation.
  void apply(BeforeLoss, const State& state);
  void apply(EvalAfterForward, const State& state);

 private:
  [[nodiscard]] bool train_is_due(const State& state) const;

  [[nodiscard]] at::Tensor first(const at::Tensor& batch) const {
    return batch.detach().slice(0, 0, num_images);
  }

  void show(const State& state, std::string_view title, std::span<const LoggedMask> masks) const;

  void show_masks(const State& state, std::string_view title) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/image_visualizer.inl.hpp>
#endif
