// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/colout.hpp>

namespace tutti::detail {

TUTTI_INLINE Indices draw_kept(Rng& rng, std::int64_t size, double p, std::string_view what) {
  TUTTI_CHECK_VALUE(p >= 0 && p <= 1, "ColOut: ", what, " is ", p,
                    ", expected a number from 0 to 1");
  const auto kept = static_cast<std::int64_t>((1 - p) * static_cast<double>(size) + 1e-9);
  TUTTI_CHECK_VALUE(kept >= 1, "ColOut: ", what, " is ", p, ", which leaves nothing of ", size,
                    "; expected a smaller part");
  const at::Tensor order = rng.permutation(size);
  const auto* first = order.const_data_ptr<std::int64_t>();
  Indices indices(first, first + kept);
  std::sort(indices.begin(), indices.end());
  return indices;
}

TUTTI_INLINE Grid draw_grid(std::int64_t height, std::int64_t width, Rng& rng, double p_row,
                            double p_col) {
  Indices rows = draw_kept(rng, height, p_row, "p_row");
  return {std::move(rows), draw_kept(rng, width, p_col, "p_col")};
}

TUTTI_INLINE Grid draw_grid(const at::Tensor& x, Rng& rng, double p_row, double p_col) {
  TUTTI_CHECK_VALUE(x.dim() >= 2, "ColOut: the input is ", x.sizes(),
                    ", expected images [..., H, W]");
  return draw_grid(x.size(-2), x.size(-1), rng, p_row, p_col);
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor colout_batch(const at::Tensor& x, Rng& rng, const ColOutOptions& options) {
  const auto grid = ::tutti::detail::draw_grid(x, rng, options.p_row, options.p_col);
  return ::tutti::detail::take_grid(x, grid.rows, grid.columns);
}

TUTTI_INLINE ColOutBatch colout_batch(const at::Tensor& x, const at::Tensor& target, Rng& rng,
                                      const ColOutOptions& options) {
  const auto grid = ::tutti::detail::draw_grid(x, rng, options.p_row, options.p_col);
  const bool always = options.resize_target == ResizeTarget::always;
  const bool fits = target.dim() > (always ? 1 : 2) && target.size(-2) == x.size(-2) &&
                    target.size(-1) == x.size(-1);
  TUTTI_CHECK_VALUE(fits || !always, "colout_batch: resize_target is always and the target is ",
                    target.sizes(), ", expected [..., ", x.size(-2), ", ", x.size(-1),
                    "] as the input's");
  const bool cut = fits && options.resize_target != ResizeTarget::never;
  return {::tutti::detail::take_grid(x, grid.rows, grid.columns),
          cut ? ::tutti::detail::take_grid(target, grid.rows, grid.columns) : target};
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void ColOut::apply(FitStart, State& state) const {
  const functional::ColOutOptions options{.p_row = p_row, .p_col = p_col};
  detail::train_transforms(state, name)
      .put(
          name,
          [options](const at::Tensor& image, Rng& draws) {
            return functional::colout_batch(image, draws, options);
          },
          rng);
}

TUTTI_INLINE void ColOut::apply(AfterDataloader, State& state) {
  at::Tensor& x = detail::images_of(state.batch, input_key, name);
  const functional::ColOutOptions options{
      .p_row = p_row, .p_col = p_col, .resize_target = resize_target};
  if (resize_target == ResizeTarget::never || (target_key.empty() && !state.batch.has_targets())) {
    x = functional::colout_batch(x, rng, options);
    return;
  }
  at::Tensor& target = detail::targets_of(state.batch, target_key);
  const functional::ColOutBatch cut = functional::colout_batch(x, target, rng, options);
  x = cut.input;
  target = cut.target;
}

TUTTI_INLINE std::optional<fused::Take> ColOut::pixels(const fused::Frame& frame, State& state) {
  const auto alone = [&] {
    if (resize_target == ResizeTarget::never || !state.batch.has_targets()) {
      return target_key.empty() || resize_target == ResizeTarget::never;
    }
    const at::Tensor& target = state.batch.targets();
    return detail::means_targets(state.batch, target_key) &&
           resize_target == ResizeTarget::automatic &&
           !(target.dim() > 2 && target.size(-2) == frame.height && target.size(-1) == frame.width);
  };
  if (!detail::means_inputs(state.batch, input_key) || !alone()) {
    return std::nullopt;
  }
  return pixels(frame);
}

TUTTI_INLINE void ColOut::close(State& state) const {
  if (state.train_transforms != nullptr) {
    state.train_transforms->remove(name);
  }
}

}  // namespace tutti
