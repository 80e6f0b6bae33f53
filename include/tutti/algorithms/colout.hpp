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
#include <tutti/algorithms/colout.inl.hpp>
#endif
