// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/image_transforms.hpp>
#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/algorithms/detail/pixel_grid.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>

/// ColOut: training on images without some of their rows and columns.
namespace tutti {

/// Whether targets lose the rows and columns that their images lose.
enum class ResizeTarget : std::uint8_t {
  automatic,  ///< when they have more than two dimensions, the last two those of the images
  always,     ///< yes
  never,      ///< no
};

/// "automatic", "always", "never".
constexpr std::string_view to_string(ResizeTarget resize) {
  switch (resize) {
    case ResizeTarget::automatic:
      return "automatic";
    case ResizeTarget::always:
      return "always";
    case ResizeTarget::never:
      return "never";
  }
  return "unknown";
}

namespace detail {

// Which of `size` rows stay when part `p` of them goes, in ascending order. The part that stays is
// rounded down, but not for what doubles cannot express: 1 - 0.9 of 10 is 1.
Indices draw_kept(Rng& rng, std::int64_t size, double p, std::string_view what);

struct Grid {
  Indices rows;
  Indices columns;
};

Grid draw_grid(std::int64_t height, std::int64_t width, Rng& rng, double p_row, double p_col);

Grid draw_grid(const at::Tensor& x, Rng& rng, double p_row, double p_col);

}  // namespace detail

namespace functional {

/// How colout_batch deletes.
struct ColOutOptions {
  double p_row = 0.15;  ///< part of the rows to delete; in [0, 1), leaving one at least
  double p_col = 0.15;  ///< likewise of the columns
  ResizeTarget resize_target = ResizeTarget::automatic;
};

/// What colout_batch gives.
struct ColOutBatch {
  at::Tensor input;   ///< [..., H', W']
  at::Tensor target;  ///< cut likewise, or the very tensor that was given
};

/// Deletes random rows and columns of images, the same of all of them.
///
/// x: [..., H, W], of any type. Draws the rows, then the columns.
/// Returns [..., H', W'] with H' = (1 - p_row) * H and W' = (1 - p_col) * W, rounded down.
/// Throws c10::Error (ValueError) when x is no image or nothing would be left of it.
/// Source: MosaicML Composer, `composer.algorithms.colout.colout_batch`.
at::Tensor colout_batch(const at::Tensor& x, Rng& rng, const ColOutOptions& options = {});

/// The same of images and, as `resize_target` says, of targets with something for every pixel.
///
/// Throws also when resize_target is `always` and the target's last two sizes are not the input's.
ColOutBatch colout_batch(const at::Tensor& x, const at::Tensor& target, Rng& rng,
                         const ColOutOptions& options = {});

}  // namespace functional

/// Trains on images without a random part of their rows and columns, so on smaller ones.
///
/// Source: MosaicML Composer, `composer.algorithms.ColOut`; there is no paper.
struct ColOut final {
  double p_row = 0.15;  ///< part of the rows to delete; in [0, 1)
  double p_col = 0.15;  ///< part of the columns to delete; in [0, 1)
  bool batch = true;    ///< the same of all images of a batch; else each image on its own, on its
                        ///< way into the batch, which needs an ImageLoader
  ResizeTarget resize_target = ResizeTarget::automatic;  ///< of batches only
  Key input_key{};   ///< the batch's tensor to cut; empty: batch.inputs()
  Key target_key{};  ///< likewise; empty: batch.targets()
  Rng rng{};

  static constexpr std::string_view name = "ColOut";
  using events = types<FitStart, AfterDataloader>;
  static constexpr Rules rules{
      .tags = {id<changes_input_size>},
      .runs_before = {{id<ProgressiveResizing>,
                       "deleting columns afterwards would break the sizes that it aligns"},
                      {id<CutOut>,
                       "holes keep the size asked for when nothing is deleted afterwards"}},
  };

  /// Networks for images of any size.
  template <class Model>
  static constexpr bool supports = offers<Model, takes_images> && !lists<Model, fixed_input_size>;

  /// Throws c10::ValueError when an option is out of range, or when targets should be cut along
  /// with images on their own.
  constexpr void validate() const {
    expect(p_row >= 0 && p_row < 1, "ColOut: p_row", p_row, "0 or more and less than 1");
    expect(p_col >= 0 && p_col < 1, "ColOut: p_col", p_col, "0 or more and less than 1");
    expect(batch || resize_target != ResizeTarget::always,
           "ColOut: resize_target is always and batch is false, but images on their own are cut "
           "without their targets; set batch.");
  }

  bool match(FitStart, const State&) const { return !batch; }
  bool match(AfterDataloader, const State&) const { return batch; }

  /// Puts itself into the transforms of the training loader.
  void apply(FitStart, State& state) const;

  /// Replaces the inputs, and the targets where they go along.
  void apply(AfterDataloader, State& state);

  /// Draws as apply(AfterDataloader) does, for a fused pass; targets stay as they are.
  /// Throws c10::ValueError without batch: then images are cut on their own.
  [[nodiscard]] fused::Take pixels(const fused::Frame& frame) {
    expect(batch,
           "ColOut: batch is false, but a fused pass cuts all images of a batch alike; set "
           "batch, or leave ColOut to the loader.");
    auto [rows, columns] = detail::draw_grid(frame.height, frame.width, rng, p_row, p_col);
    return {std::move(rows), std::move(columns)};
  }

  /// The same in a recipe; nothing where another tensor than the inputs is cut, or targets are.
  [[nodiscard]] std::optional<fused::Take> pixels(const fused::Frame& frame, State& state);

  /// Takes itself out of the loader again.
  void close(State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES

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
  const bool fits =
      target.dim() > 2 && target.size(-2) == x.size(-2) && target.size(-1) == x.size(-1);
  TUTTI_CHECK_VALUE(fits || options.resize_target != ResizeTarget::always,
                    "colout_batch: resize_target is always and the target is ", target.sizes(),
                    ", expected [N, ..., ", x.size(-2), ", ", x.size(-1), "] as the input's");
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

#endif
