// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/cutout.hpp>

namespace tutti::detail {

TUTTI_INLINE void cut_hole(const at::Tensor& x, Rng& rng, std::int64_t side,
                           bool uniform_sampling) {
  const fused::Box hole = draw_hole(rng, x.size(-2), x.size(-1), side, uniform_sampling);
  x.slice(-2, hole.top, hole.bottom).slice(-1, hole.left, hole.right).zero_();
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor cutout_batch(const at::Tensor& x, Rng& rng, const CutOutOptions& options) {
  const std::int64_t least = options.per_image ? 3 : 2;
  TUTTI_CHECK_VALUE(x.dim() >= least, "cutout_batch: the input is ", x.sizes(),
                    ", expected images ", options.per_image ? "[N, ..., H, W]" : "[..., H, W]");
  TUTTI_CHECK_VALUE(options.num_holes >= 0, "cutout_batch: num_holes is ", options.num_holes,
                    ", expected 0 or more");
  TUTTI_CHECK_VALUE(options.length > 0 && options.length < 1, "cutout_batch: length is ",
                    options.length, ", expected more than 0 and less than 1");
  const std::int64_t side = ::tutti::detail::hole_side(options.length, x.size(-2), x.size(-1));
  if (options.num_holes == 0 || x.numel() == 0) {
    return x;
  }
  at::Tensor out = x.clone();
  const std::int64_t images = options.per_image ? x.size(0) : 1;
  for (std::int64_t i = 0; i < images; ++i) {
    const at::Tensor image = options.per_image ? out.select(0, i) : out;
    for (std::int64_t hole = 0; hole < options.num_holes; ++hole) {
      ::tutti::detail::cut_hole(image, rng, side, options.uniform_sampling);
    }
  }
  return out;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void CutOut::apply(AfterDataloader, State& state) {
  at::Tensor& x = detail::images_of(state.batch, input_key, name);
  x = functional::cutout_batch(x, rng,
                               {.num_holes = num_holes,
                                .length = length,
                                .uniform_sampling = uniform_sampling,
                                .per_image = per_image});
}

TUTTI_INLINE std::optional<fused::Holes> CutOut::pixels(const fused::Frame& frame, State& state) {
  if (!detail::means_inputs(state.batch, input_key)) {
    return std::nullopt;
  }
  return pixels(frame);
}

}  // namespace tutti
