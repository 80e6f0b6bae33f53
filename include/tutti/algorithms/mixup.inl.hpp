// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/mixup.hpp>

namespace tutti::functional {

TUTTI_INLINE at::Tensor mix(const at::Tensor& x, const at::Tensor& indices, double mixing) {
  TUTTI_CHECK_VALUE(x.dim() > 0 && indices.dim() == 1 && indices.size(0) == x.size(0),
                    "mix: indices is ", indices.sizes(), " and x is ", x.sizes(),
                    "; expected one index for each example of x");
  if (mixing == 0) {
    return x;
  }
  at::Tensor partner = x.index_select(0, indices);
  partner = x.is_floating_point() ? partner.mul_(mixing) : partner.mul(mixing);
  return x.mul(1 - mixing).add_(partner);
}

TUTTI_INLINE double draw_mixing(Rng& rng, double alpha) {
  TUTTI_CHECK_VALUE(alpha >= 0, "MixUp: alpha is ", alpha, ", expected 0 or more");
  if (alpha == 0) {
    return 0;
  }
  const double z = rng.beta(alpha, alpha);
  return std::min(z, 1 - z);
}

TUTTI_INLINE MixUpBatch mixup_batch(const at::Tensor& input, const at::Tensor& target, Rng& rng,
                                    const MixUpOptions& options) {
  const double mixing = options.mixing ? *options.mixing : draw_mixing(rng, options.alpha);
  TUTTI_CHECK_VALUE(mixing >= 0 && mixing <= 1, "mixup_batch: mixing is ", mixing,
                    ", expected a number from 0 to 1");
  at::Tensor indices = options.indices.defined() ? options.indices : rng.permutation(input.size(0));
  indices = indices.to(input.device(), /*non_blocking=*/true);
  const at::Tensor permuted = target.index_select(0, indices.to(target.device()));
  return {mix(input, indices, mixing), permuted, mixing, indices};
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void MixUp::apply(BeforeForward, State& state) {
  at::Tensor& x = detail::inputs_of(state.batch, input_key);
  TUTTI_CHECK_VALUE(x.dim() != 4 || x.scalar_type() != at::kByte, "MixUp: the inputs are bytes, ",
                    "uint8", x.sizes(),
                    ", expected floats; put tutti::fused::Normalize into the recipe, or let the "
                    "loader make floats of them");
  run.mixing = functional::draw_mixing(rng, alpha);
  *run.indices = rng.permutation(x.size(0)).to(x.device(), /*non_blocking=*/true);
  x = functional::mix(x, *run.indices, run.mixing);
}

TUTTI_INLINE std::optional<fused::Mix> MixUp::pixels(const fused::Frame& frame, State& state) {
  if (!detail::means_inputs(state.batch, input_key)) {
    return std::nullopt;
  }
  fused::Mix drawn = pixels(frame);
  *run.indices =
      run.indices->to(state.batch.inputs().device(), /*non_blocking=*/true);  // for targets
  return drawn;
}

TUTTI_INLINE void MixUp::apply(BeforeLoss, State& state) const {
  const at::Tensor own = functional::ensure_targets_one_hot(
      state.outputs.tensor(), detail::targets_of(state.batch, target_key));
  detail::replace_targets(state.batch, target_key, functional::mix(own, *run.indices, run.mixing));
}

}  // namespace tutti
