// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/image_visualizer.hpp>

namespace tutti {

TUTTI_INLINE void ImageVisualizer::apply(BeforeForward, const State& state) {
  run.last = state.timestamp.get(interval.unit()).count();
  show(state, "Images/Train", {});
}

TUTTI_INLINE void ImageVisualizer::apply(EvalBeforeForward, const State& state) {
  run.eval_is_due = false;
  show(state, "Images/Eval", {});
}

TUTTI_INLINE void ImageVisualizer::apply(BeforeLoss, const State& state) {
  run.last = state.timestamp.get(interval.unit()).count();
  show_masks(state, "Images/Train");
}

TUTTI_INLINE void ImageVisualizer::apply(EvalAfterForward, const State& state) {
  run.eval_is_due = false;
  show_masks(state, "Images/Eval");
}

TUTTI_INLINE bool ImageVisualizer::train_is_due(const State& state) const {
  const std::int64_t now = state.timestamp.get(interval.unit()).count();
  return now % interval.count() == 0 && now != run.last && state.logger.wants_images();
}

TUTTI_INLINE void ImageVisualizer::show(const State& state, std::string_view title,
                                        std::span<const LoggedMask> masks) const {
  const at::Tensor& inputs = input_key.empty() ? state.batch.inputs() : state.batch.at(input_key);
  TUTTI_CHECK(inputs.dim() == 3 || inputs.dim() == 4, "ImageVisualizer: the images are ",
              inputs.sizes(),
              ", expected [N, C, H, W], [N, H, W, C] or [N, H, W]; set input_key "
              "to the batch's tensor that holds images");
  const at::Tensor images = first(inputs.dim() == 4 ? inputs : inputs.unsqueeze(1)).cpu();
  state.logger.log_images({.name = title,
                           .images = images,
                           .channels_last = channels_last && inputs.dim() == 4,
                           .masks = masks},
                          state.timestamp.batch);
}

TUTTI_INLINE void ImageVisualizer::show_masks(const State& state, std::string_view title) const {
  const at::Tensor outputs = first(state.outputs.tensor());
  at::Tensor truth = first(target_key.empty() ? state.batch.targets() : state.batch.at(target_key));
  TUTTI_CHECK(outputs.dim() == 4 && (truth.dim() == 3 || truth.dim() == 4),
              "ImageVisualizer: mode segmentation got outputs ", outputs.sizes(), " and targets ",
              truth.sizes(),
              ", expected [N, C, H, W] and [N, H, W] or [N, C, H, W]; use Mode::input for other "
              "tasks");
  const at::Tensor prediction = outputs.argmax(1).cpu();  // [N, H, W]
  truth = truth.dim() == 4 ? truth.argmax(1) : truth;     // [N, H, W]
  truth = truth.masked_fill(truth.lt(0), outputs.size(1)).cpu();
  const std::array<LoggedMask, 2> masks{LoggedMask{"prediction", prediction},
                                        LoggedMask{"ground_truth", truth}};
  show(state, title, masks);
}

}  // namespace tutti
