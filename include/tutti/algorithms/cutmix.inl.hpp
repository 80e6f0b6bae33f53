// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/cutmix.hpp>

namespace tutti::functional {

TUTTI_INLINE Box draw_box(Rng& rng, std::int64_t height, std::int64_t width, double side,
                          bool uniform_sampling) {
  const auto centre = [&](std::int64_t size) {
    const auto cut = static_cast<std::int64_t>(static_cast<double>(size) * side);
    return uniform_sampling ? rng.integer(-((cut + 1) / 2), size + cut / 2) : rng.integer(0, size);
  };
  const std::int64_t row = centre(height);
  const std::int64_t column = centre(width);
  return box_around(row, column, height, width, side);
}

TUTTI_INLINE at::Tensor paste_box(const at::Tensor& x, const at::Tensor& indices, const Box& box) {
  TUTTI_CHECK_VALUE(x.dim() >= 3 && indices.dim() == 1 && indices.size(0) == x.size(0),
                    "paste_box: indices is ", indices.sizes(), " and x is ", x.sizes(),
                    "; expected x [N, ..., H, W] and one index for each of its examples");
  TUTTI_CHECK_VALUE(0 <= box.top && box.top <= box.bottom && box.bottom <= x.size(-2) &&
                        0 <= box.left && box.left <= box.right && box.right <= x.size(-1),
                    "paste_box: the box has rows ", box.top, " to ", box.bottom, " and columns ",
                    box.left, " to ", box.right, "; expected them within the image of ", x.size(-2),
                    " x ", x.size(-1));
  if (box.area() == 0) {
    return x;
  }
  const auto inside = [&](const at::Tensor& image) {
    return image.slice(-2, box.top, box.bottom).slice(-1, box.left, box.right);
  };
  at::Tensor out = x.clone();
  inside(out).copy_(inside(x).index_select(0, indices));
  return out;
}

}  // namespace tutti::functional

namespace tutti::detail {

TUTTI_INLINE functional::Box draw_box(std::int64_t height, std::int64_t width, Rng& rng,
                                      const functional::CutMixOptions& options) {
  double side = 0;
  if (options.length) {
    side = *options.length;
    TUTTI_CHECK_VALUE(side >= 0 && side <= 1, "cutmix_batch: length is ", side,
                      ", expected a number from 0 to 1");
  } else {
    TUTTI_CHECK_VALUE(options.alpha >= 0, "CutMix: alpha is ", options.alpha,
                      ", expected 0 or more");
    const double lambda = options.lambda      ? *options.lambda
                          : options.alpha > 0 ? rng.beta(options.alpha, options.alpha)
                                              : 0.0;
    TUTTI_CHECK_VALUE(lambda >= 0 && lambda <= 1, "cutmix_batch: lambda is ", lambda,
                      ", expected a number from 0 to 1");
    side = std::sqrt(1 - lambda);
  }
  return functional::draw_box(rng, height, width, side, options.uniform_sampling);
}

TUTTI_INLINE functional::Box choose_box(const at::Tensor& input, Rng& rng,
                                        const functional::CutMixOptions& options) {
  TUTTI_CHECK_VALUE(input.dim() == 4, "CutMix: the input is ", input.sizes(),
                    ", expected images [N, C, H, W]");
  const int given = int{options.lambda.has_value()} + int{options.length.has_value()} +
                    int{options.box.has_value()};
  TUTTI_CHECK_VALUE(given <= 1,
                    "cutmix_batch: more than one of lambda, length and box is set, and each of "
                    "them decides the box's size; expected one at most");
  if (options.box) {
    return *options.box;
  }
  return draw_box(input.size(2), input.size(3), rng, options);
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE CutMixBatch cutmix_batch(const at::Tensor& input, const at::Tensor& target, Rng& rng,
                                      const CutMixOptions& options) {
  at::Tensor indices = options.indices.defined() ? options.indices : rng.permutation(input.size(0));
  indices = indices.to(input.device(), /*non_blocking=*/true);
  const Box box = ::tutti::detail::choose_box(input, rng, options);
  const double kept = part_outside(box, input.size(2), input.size(3));
  const at::Tensor permuted = target.index_select(0, indices.to(target.device()));
  return {paste_box(input, indices, box), permuted, kept, box, indices};
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void CutMix::apply(BeforeForward, State& state) {
  at::Tensor& x = detail::inputs_of(state.batch, input_key);
  const at::Tensor& target = detail::targets_of(state.batch, target_key);
  TUTTI_CHECK_VALUE(!interpolate_loss || !per_pixel(x, target), "CutMix: the targets ",
                    target.sizes(),
                    " say something for every pixel, which interpolate_loss "
                    "cannot mix; leave it off, and their box is pasted as the images' is.");
  *run.indices = rng.permutation(x.size(0)).to(x.device(), /*non_blocking=*/true);
  run.box = detail::choose_box(x, rng, {.alpha = alpha, .uniform_sampling = uniform_sampling});
  run.adjusted_lambda = functional::part_outside(run.box, x.size(2), x.size(3));
  x = functional::paste_box(x, *run.indices, run.box);
}

TUTTI_INLINE std::optional<fused::Paste> CutMix::pixels(const fused::Frame& frame, State& state) {
  if (!detail::means_inputs(state.batch, input_key) ||
      !detail::means_targets(state.batch, target_key) ||
      (interpolate_loss && state.batch.targets().dim() > 2)) {
    return std::nullopt;
  }
  fused::Paste drawn = pixels(frame);
  *run.indices =
      run.indices->to(state.batch.inputs().device(), /*non_blocking=*/true);  // for targets
  return drawn;
}

TUTTI_INLINE void CutMix::apply(BeforeLoss, State& state) const {
  const at::Tensor& target = detail::targets_of(state.batch, target_key);
  at::Tensor mixed;
  if (per_pixel(detail::inputs_of(state.batch, input_key), target)) {
    mixed = functional::paste_box(target, *run.indices, run.box);
  } else {
    const at::Tensor own = functional::ensure_targets_one_hot(state.outputs.tensor(), target);
    mixed = own.mul(run.adjusted_lambda)
                .add_(own.index_select(0, *run.indices).mul_(1 - run.adjusted_lambda));
  }
  detail::replace_targets(state.batch, target_key, mixed);
}

TUTTI_INLINE bool CutMix::per_pixel(const at::Tensor& input, const at::Tensor& target) {
  return target.dim() > 2 && target.size(-1) == input.size(-1) && target.size(-2) == input.size(-2);
}

}  // namespace tutti
