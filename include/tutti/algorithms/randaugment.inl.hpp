// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/randaugment.hpp>

namespace tutti::functional {

TUTTI_INLINE at::Tensor randaugment_image(const at::Tensor& images, Rng& rng,
                                          const RandAugmentOptions& options) {
  TUTTI_CHECK_VALUE(options.severity >= 0 && options.severity <= 10,
                    "randaugment_image: severity is ", options.severity,
                    ", expected a number from 0 to 10");
  TUTTI_CHECK_VALUE(options.depth >= 0, "randaugment_image: depth is ", options.depth,
                    ", expected 0 or more");
  if (options.severity == 0 || options.depth == 0) {
    return images;
  }
  return data::map_images(images, rng, [&](at::Tensor image, Rng& draws) {
    for (std::int64_t i = 0; i < options.depth; ++i) {
      const auto which = draws.integer(0, data::size_of(options.augmentation_set));
      image = data::augment(image, data::operation_of(options.augmentation_set, which),
                            options.severity, draws);
    }
    return image;
  });
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void RandAugment::apply(FitStart, State& state) const {
  const functional::RandAugmentOptions options{
      .severity = severity, .depth = depth, .augmentation_set = augmentation_set};
  detail::train_transforms(state, name)
      .put(
          name,
          [options](const at::Tensor& image, Rng& draws) {
            return functional::randaugment_image(image, draws, options);
          },
          rng);
}

TUTTI_INLINE void RandAugment::close(State& state) const {
  if (state.train_transforms != nullptr) {
    state.train_transforms->remove(name);
  }
}

}  // namespace tutti
