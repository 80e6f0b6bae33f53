// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fused/pixels.hpp>
#include <tutti/losses/targets.hpp>

/// CutMix: training on images in which a box comes from another image.
namespace tutti {

namespace functional {

using fused::Box;

/// A box around (row, column) that is `side` times as high and as wide as the image, cut off at its
/// edges. Sides are truncated to whole pixels, and the box reaches half of them, rounded down, to
/// either side of its centre.
///
/// height, width: of the image. side: in [0, 1].
constexpr Box box_around(std::int64_t row, std::int64_t column, std::int64_t height,
                         std::int64_t width, double side) {
  const std::int64_t half_height =
      static_cast<std::int64_t>(static_cast<double>(height) * side) / 2;
  const std::int64_t half_width = static_cast<std::int64_t>(static_cast<double>(width) * side) / 2;
  return {std::clamp<std::int64_t>(row - half_height, 0, height),
          std::clamp<std::int64_t>(column - half_width, 0, width),
          std::clamp<std::int64_t>(row + half_height, 0, height),
          std::clamp<std::int64_t>(column + half_width, 0, width)};
}

/// Draws the centre, row before column, of a box with sides of `side` times the image's.
///
/// uniform_sampling: centres may lie outside, so that every pixel is covered equally often; else
/// they lie in the image, and pixels near its edges are covered less.
Box draw_box(Rng& rng, std::int64_t height, std::int64_t width, double side,
             bool uniform_sampling = false);

/// Pastes the box of each example's partner: x[indices] inside the box, x outside.
///
/// x: [N, ..., H, W]. indices: [N], int64, on x's device. box: within [0, H] x [0, W].
/// Returns [N, ..., H, W] in x's memory format; x itself when the box is empty. x is left alone.
/// Throws c10::Error (ValueError) when indices is not [N] or the box reaches out of the image.
at::Tensor paste_box(const at::Tensor& x, const at::Tensor& indices, const Box& box);

/// The part of the image that lies outside the box: the weight of its own target.
constexpr double part_outside(const Box& box, std::int64_t height, std::int64_t width) {
  return 1 - static_cast<double>(box.area()) / static_cast<double>(height * width);
}

/// What cutmix_batch draws unless it is given. At most one of lambda, length and box.
struct CutMixOptions {
  double alpha = 1.0;              ///< of the Beta distribution of lambda; >= 0; at 0 lambda is 0
  std::optional<double> lambda{};  ///< part of the image to keep, in [0, 1]
  std::optional<double> length{};  ///< sides of the box as a part of the image's, in [0, 1]
  std::optional<Box> box{};
  at::Tensor indices{};           ///< [N], int64, a permutation
  bool uniform_sampling = false;  ///< see draw_box
};

/// What cutmix_batch gives.
struct CutMixBatch {
  at::Tensor input;            ///< [N, C, H, W]
  at::Tensor permuted_target;  ///< [N, ...], target[indices]
  double adjusted_lambda = 1;  ///< weight of the original target: the part outside the box
  Box box;
  at::Tensor indices;  ///< [N], int64, on the input's device
};

}  // namespace functional

namespace detail {

// The box for an image of that size, whose part to keep or sides are given or drawn.
functional::Box draw_box(std::int64_t height, std::int64_t width, Rng& rng,
                         const functional::CutMixOptions& options);

functional::Box choose_box(const at::Tensor& input, Rng& rng,
                           const functional::CutMixOptions& options);

}  // namespace detail

namespace functional {

/// Pastes one box of each image's partner into it.
///
/// input: [N, C, H, W]. target: [N, ...]. Draws the permutation, then lambda, then the box's
/// centre; all images share the box. Its sides are sqrt(1 - lambda) times the image's, lambda from
/// Beta(alpha, alpha).
/// The loss to train on is adjusted_lambda times that against target plus the rest times that
/// against permuted_target, or the loss against targets blended likewise.
/// Throws c10::Error (ValueError) when the input is not [N, C, H, W] or an option out of range.
/// Source: Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with
/// Localizable Features", ICCV 2019; MosaicML Composer, `composer.algorithms.cutmix.cutmix_batch`.
CutMixBatch cutmix_batch(const at::Tensor& input, const at::Tensor& target, Rng& rng,
                         const CutMixOptions& options = {});

}  // namespace functional

/// Trains on images into which a box of another image of the microbatch is pasted.
///
/// Targets with a class or a weight for every pixel (more than two dimensions, the last two those
/// of the input) get the same box pasted; others are blended by area.
/// Source: Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with
/// Localizable Features", ICCV 2019.
struct CutMix final {
  double alpha = 1.0;             ///< of the Beta distribution of the part to keep; > 0
  bool interpolate_loss = false;  ///< two losses per microbatch; else one, of blended targets
  bool uniform_sampling = false;  ///< box centres also outside, to cover all pixels alike
  Key input_key{};                ///< the batch's tensor to cut; empty: batch.inputs()
  Key target_key{};               ///< likewise; empty: batch.targets()
  Rng rng{};

  /// What it holds while it runs; not an option.
  struct Run {
    double adjusted_lambda = 1;  ///< weight of the microbatch's own targets
    functional::Box box{};       ///< what is pasted in this microbatch
    Lazy<at::Tensor> indices{};  ///< its permutation, int64 [N]
  } run{};

  static constexpr std::string_view name = "CutMix";
  using events = types<BeforeForward, BeforeLoss, BeforeBackward>;
  static constexpr Rules rules{
      .tags = {id<mixes_inputs>, id<interpolates_loss>, id<needs_dense_targets>},
      .warns_with = {{id<CutOut>,
                      "a hole may cover what was pasted, and the targets' weights do not "
                      "follow"}},
      .works_with = {{id<uses_closure>,
                      "both passes of a step see one draw of box and permutation"},
                     {id<smooths_targets>, "both terms of an interpolated loss are smoothed"}},
      .graph = {.ahead = {id<BeforeLoss>}, .instead = {id<BeforeBackward>}},
  };

  template <class Model>
  static constexpr bool supports = offers<Model, takes_images>;

  /// Throws c10::ValueError unless alpha is above 0.
  constexpr void validate() const {
    expect(alpha > 0, "CutMix: alpha", alpha, "more than 0; for no mixing at all leave CutMix out");
  }

  /// Throws c10::ValueError beside another policy that mixes inputs when this one interpolates the
  /// loss: the terms in which both mix would be missing.
  template <class Other>
  void validate_with(const Other&) const {
    detail::refuse_second_mixer<CutMix, Other>(interpolate_loss);
  }

  /// Throws c10::ValueError when targets are to be mixed for a loss that takes class indices only;
  /// warns when the loss is to be interpolated but is not linear in the targets.
  template <class Model>
  void validate_model() const {
    detail::check_loss_of_mixed<CutMix, Model>(interpolate_loss);
  }

  bool match(BeforeLoss, const State&) const { return !interpolate_loss; }
  bool match(BeforeBackward, const State&) const { return interpolate_loss; }

  /// Draws the permutation, the part to keep, then the box, and replaces the inputs.
  void apply(BeforeForward, State& state);

  /// Draws as apply(BeforeForward) does, for a fused pass.
  [[nodiscard]] fused::Paste pixels(const fused::Frame& frame) {
    *run.indices = rng.permutation(frame.images);
    run.box = detail::draw_box(frame.height, frame.width, rng,
                               {.alpha = alpha, .uniform_sampling = uniform_sampling});
    run.adjusted_lambda = functional::part_outside(run.box, frame.height, frame.width);
    return {*run.indices, run.box, run.adjusted_lambda};
  }

  /// The same in a recipe; nothing where another tensor than the inputs is mixed, or it has to look
  /// at the targets.
  [[nodiscard]] std::optional<fused::Paste> pixels(const fused::Frame& frame, State& state);

  /// Targets are mixed as the inputs are, so that a loss need not see dense ones.
  [[nodiscard]] bool targets_follow(const State& state) const {
    return !interpolate_loss && detail::means_targets(state.batch, target_key);
  }

  /// Replaces the targets by blended ones, dense, or by ones with the box pasted.
  void apply(BeforeLoss, State& state) const;

  /// Adds the loss against the permuted targets.
  void apply(BeforeBackward, State& state) const {
    detail::interpolate_loss(state, target_key, *run.indices, run.adjusted_lambda);
  }

 private:
  static bool per_pixel(const at::Tensor& input, const at::Tensor& target);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/cutmix.inl.hpp>
#endif
