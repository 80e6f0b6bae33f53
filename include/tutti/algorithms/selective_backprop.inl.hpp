// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/selective_backprop.hpp>

namespace tutti::functional {

TUTTI_INLINE at::Tensor draw_by_loss(const at::Tensor& losses, Rng& rng, double keep) {
  TUTTI_CHECK_VALUE(keep > 0 && keep <= 1, "SelectiveBackprop: keep is ", keep,
                    ", expected more than 0 and at most 1");
  TUTTI_CHECK_VALUE(losses.dim() >= 1 && losses.numel() > 0,
                    "SelectiveBackprop: the losses of the examples are ", losses.sizes(),
                    ", expected one for each, [N] or [N, ...]");
  const at::Tensor each = losses.dim() == 1 ? losses : losses.flatten(1).mean(1);
  const at::Tensor ascending = each.detach().argsort(/*stable=*/true, /*dim=*/0).cpu();
  const auto n = static_cast<double>(each.numel());
  std::vector<double> weights(static_cast<std::size_t>(each.numel()));
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    weights[rank] = std::pow((static_cast<double>(rank) + 0.5) / n, 1 / keep - 1);
  }
  const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(keep * n + 1e-9));
  return ascending.index_select(0, rng.choose(weights, count));
}

}  // namespace tutti::functional

namespace tutti::detail {

TUTTI_INLINE at::Tensor shrink_inputs(const at::Tensor& x, double scale) {
  TUTTI_CHECK_VALUE(scale > 0 && scale <= 1, "SelectiveBackprop: scale_factor is ", scale,
                    ", expected more than 0 and at most 1");
  if (scale == 1) {
    return x;
  }
  TUTTI_CHECK_VALUE(x.dim() >= 3 && x.dim() <= 5, "SelectiveBackprop: scale_factor is ", scale,
                    " and the input ", x.sizes(), ", expected [N, C, ...] with 1 to 3 sides");
  const std::vector<double> scales(static_cast<std::size_t>(x.dim() - 2), scale);
  const at::ArrayRef<double> factors(scales);
  switch (x.dim()) {
    case 3:
      return at::upsample_linear1d(x, std::nullopt, /*align_corners=*/false, factors);
    case 4:
      return at::upsample_bilinear2d(x, std::nullopt, /*align_corners=*/false, factors);
    default:
      return at::upsample_trilinear3d(x, std::nullopt, /*align_corners=*/false, factors);
  }
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE bool SelectiveBackprop::match(AfterDataloader, const State& state) const {
  return keep < 1 && functional::should_selective_backprop(
                         detail::elapsed(state, whole_units, name), state.timestamp.batch_in_epoch,
                         start, end, interrupt);
}

TUTTI_INLINE void SelectiveBackprop::apply(Init, State& state) const {
  TUTTI_CHECK(state.task.has_sample_losses(),
              "SelectiveBackprop: the model gives no loss for each example, by which they could "
              "be chosen; add at::Tensor sample_losses(const tutti::Outputs&, const "
              "tutti::Batch&), [N] or [N, ...], to it (for a Classifier with a loss of its own "
              "set ClassifierOptions::sample_losses).");
}

TUTTI_INLINE void SelectiveBackprop::apply(AfterDataloader, State& state) {
  const std::int64_t total = state.batch.num_samples();
  const at::Tensor losses = losses_of(state);
  TUTTI_CHECK_VALUE(losses.size(0) == total, "SelectiveBackprop: sample_losses gave ",
                    losses.size(0), " losses for ", total, " examples");
  const at::Tensor chosen = functional::draw_by_loss(losses, rng, keep);
  for (auto& [key, tensor] : state.batch) {
    if (tensor.dim() > 0) {
      tensor = tensor.index_select(0, chosen.to(tensor.device()));
    }
  }
}

TUTTI_INLINE at::Tensor SelectiveBackprop::losses_of(State& state) {
  const c10::AutoGradMode no_grad(false);
  const detail::SavedTensors saved(
      freeze_statistics ? state.model->buffers() : std::vector<at::Tensor>{}, *run.statistics);
  const std::int64_t size = whole_batch ? 0 : state.device_train_microbatch_size;
  std::vector<at::Tensor> losses;
  for (const Batch& part : state.batch.split(size > 0 ? size : state.batch.num_samples())) {
    Batch batch = part.to(state.device, /*non_blocking=*/true);
    at::Tensor& x = detail::inputs_of(batch, input_key);
    x = detail::shrink_inputs(x, scale_factor);
    const Autocast low = state.autocast();
    losses.push_back(state.task.sample_losses(state.task.forward(batch), batch));
    TUTTI_CHECK_VALUE(losses.back().dim() > 0,
                      "SelectiveBackprop: sample_losses gave one number, "
                      "expected a loss for each example, [N] or [N, ...]");
  }
  return at::cat(losses);
}

}  // namespace tutti
