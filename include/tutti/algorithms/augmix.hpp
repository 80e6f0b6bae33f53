// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/image_transforms.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/data/augmentations.hpp>

/// AugMix: mixes of randomly augmented copies of an image.
namespace tutti {

namespace functional {

/// How augmix_image changes images.
struct AugMixOptions {
  double severity = 3;      ///< largest strength of an operation; in [0, 10], 0 changes nothing
  std::int64_t depth = -1;  ///< operations of a chain; >= 1, or -1: 1 to 3, drawn for each chain
  std::int64_t width = 3;   ///< chains; >= 1
  double alpha = 1;         ///< of the distributions of the weights; > 0
  AugmentationSet augmentation_set = AugmentationSet::all;
};

}  // namespace functional

namespace detail {

// One chain of operations, begun anew from `image`.
at::Tensor augmented(at::Tensor image, Rng& rng, const functional::AugMixOptions& options);

// (1 - m) x + m sum_j w_j chain_j of one image uint8 [C, H, W], in fp32, rounded down.
at::Tensor mix_chains(const at::Tensor& image, Rng& rng, const functional::AugMixOptions& options);

}  // namespace detail

namespace functional {

/// Mixes randomly augmented copies of images with the images.
///
/// images: [C, H, W] or [N, C, H, W] on the CPU, uint8, or floating from 0 to 1 (rounded to 256
/// values); C is 1 or 3. Each image is `(1 - m) * x + m * sum_j w_j * chain_j(x)` with weights w
/// from Dirichlet(alpha, ...) and m from Beta(alpha, alpha), rounded down. Draws w, m, then for
/// each chain its length, and operation by operation which it is and its strength. Returns images'
/// shape and type; images itself when severity is 0. Throws c10::Error (ValueError) when images or
/// an option is out of range. Source: Hendrycks et al., "AugMix: A Simple Data Processing Method to
/// Improve Robustness and Uncertainty", ICLR 2020; MosaicML Composer,
/// `composer.functional.augmix_image`.
at::Tensor augmix_image(const at::Tensor& images, Rng& rng, const AugMixOptions& options = {});

}  // namespace functional

/// Puts mixes of augmented copies in place of the images of the training loader.
///
/// Source: Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and
/// Uncertainty", ICLR 2020.
struct AugMix final {
  double severity = 3;      ///< largest strength of an operation; in [0, 10], 0 changes nothing
  std::int64_t depth = -1;  ///< operations of a chain; >= 1, or -1: 1 to 3, drawn for each chain
  std::int64_t width = 3;   ///< chains; >= 1
  double alpha = 1;         ///< of the distributions of the weights; > 0
  AugmentationSet augmentation_set = AugmentationSet::all;  ///< what is drawn from
  Rng rng{};                                                ///< where the images' streams begin

  static constexpr std::string_view name = "AugMix";
  using events = types<FitStart>;
  static constexpr Rules rules{
      .tags = {id<augments_images>},
      .runs_before = {{id<ColOut>, "operations keep their geometry while no rows are missing"}},
      .warns_with = {{id<RandAugment>,
                      "both are strong regularisers and both keep the CPU busy for every image"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(severity >= 0 && severity <= 10, "AugMix: severity", severity, "a number from 0 to 10");
    expect(depth >= 1 || depth == -1, "AugMix: depth", depth, "1 or more, or -1 to draw it");
    expect(width >= 1, "AugMix: width", width, "1 or more");
    expect(alpha > 0, "AugMix: alpha", alpha, "more than 0");
  }

  /// Puts itself into the transforms of the training loader.
  void apply(FitStart, State& state) const;

  /// Takes itself out of the loader again.
  void close(State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/augmix.inl.hpp>
#endif
