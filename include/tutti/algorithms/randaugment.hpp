// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/algorithms/detail/image_transforms.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/data/augmentations.hpp>

/// RandAugment: a random chain of image operations.
namespace tutti {

namespace functional {

/// How randaugment_image changes images.
struct RandAugmentOptions {
  double severity = 9;     ///< largest strength of an operation; in [0, 10], 0 changes nothing
  std::int64_t depth = 2;  ///< operations one after another; >= 0
  AugmentationSet augmentation_set = AugmentationSet::all;
};

/// Applies random operations of random strength one after another.
///
/// images: [C, H, W] or [N, C, H, W] on the CPU, uint8, or floating from 0 to 1 (rounded to 256
/// values); C is 1 or 3. Each image has operations of its own: `depth` times one is drawn, with
/// replacement, and then its strength.
/// Returns images' shape and type; images itself when nothing is to be done.
/// Throws c10::Error (ValueError) when images or an option is out of range.
/// Source: Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced Search
/// Space", 2019; MosaicML Composer, `composer.functional.randaugment_image`.
at::Tensor randaugment_image(const at::Tensor& images, Rng& rng,
                             const RandAugmentOptions& options = {});

}  // namespace functional

/// Puts random chains of image operations into the training loader.
///
/// Source: Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced Search
/// Space", 2019.
struct RandAugment final {
  double severity = 9;     ///< largest strength of an operation; in [0, 10], 0 changes nothing
  std::int64_t depth = 2;  ///< operations one after another; >= 0
  AugmentationSet augmentation_set = AugmentationSet::all;  ///< what is drawn from
  Rng rng{};                                                ///< where the images' streams begin

  static constexpr std::string_view name = "RandAugment";
  using events = types<FitStart>;
  static constexpr Rules rules{
      .tags = {id<augments_images>},
      .runs_before = {{id<ColOut>, "operations keep their geometry while no rows are missing"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(severity >= 0 && severity <= 10, "RandAugment: severity", severity,
           "a number from 0 to 10");
    expect(depth >= 0, "RandAugment: depth", depth, "0 or more");
  }

  /// Puts itself into the transforms of the training loader.
  void apply(FitStart, State& state) const;

  /// Takes itself out of the loader again.
  void close(State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/randaugment.inl.hpp>
#endif
