// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/augmix.hpp>

namespace tutti::detail {

TUTTI_INLINE at::Tensor augmented(at::Tensor image, Rng& rng,
                                  const functional::AugMixOptions& options) {
  const std::int64_t depth = options.depth > 0 ? options.depth : rng.integer(1, 4);
  for (std::int64_t i = 0; i < depth; ++i) {
    const auto which = rng.integer(0, data::size_of(options.augmentation_set));
    image = data::augment(image, data::operation_of(options.augmentation_set, which),
                          options.severity, rng);
  }
  return image;
}

TUTTI_INLINE at::Tensor mix_chains(const at::Tensor& image, Rng& rng,
                                   const functional::AugMixOptions& options) {
  const at::Tensor own = image.contiguous();
  const std::vector<double> weights = rng.dirichlet(options.alpha, options.width);
  const auto mixing = static_cast<float>(rng.beta(options.alpha, options.alpha));
  const auto n = static_cast<std::size_t>(own.numel());
  std::vector<float> sum(n, 0.0F);
  for (const double weight : weights) {
    const at::Tensor chain = augmented(own, rng, options).contiguous();
    const auto* pixel = chain.const_data_ptr<std::uint8_t>();
    for (std::size_t i = 0; i < n; ++i) {
      sum[i] += static_cast<float>(weight) * static_cast<float>(pixel[i]);
    }
  }
  at::Tensor out = own.clone();
  auto* pixel = out.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < n; ++i) {
    const float mixed = (1 - mixing) * static_cast<float>(pixel[i]) + mixing * sum[i];
    pixel[i] = static_cast<std::uint8_t>(mixed);
  }
  return out;
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor augmix_image(const at::Tensor& images, Rng& rng,
                                     const AugMixOptions& options) {
  TUTTI_CHECK_VALUE(options.severity >= 0 && options.severity <= 10, "augmix_image: severity is ",
                    options.severity, ", expected a number from 0 to 10");
  TUTTI_CHECK_VALUE(options.depth >= 1 || options.depth == -1, "augmix_image: depth is ",
                    options.depth, ", expected 1 or more, or -1 to draw it");
  TUTTI_CHECK_VALUE(options.width >= 1, "augmix_image: width is ", options.width,
                    ", expected 1 or more");
  TUTTI_CHECK_VALUE(options.alpha > 0, "augmix_image: alpha is ", options.alpha,
                    ", expected more than 0");
  if (options.severity == 0) {
    return images;
  }
  return data::map_images(images, rng, [&](const at::Tensor& image, Rng& draws) {
    return ::tutti::detail::mix_chains(image, draws, options);
  });
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void AugMix::apply(FitStart, State& state) const {
  const functional::AugMixOptions options{.severity = severity,
                                          .depth = depth,
                                          .width = width,
                                          .alpha = alpha,
                                          .augmentation_set = augmentation_set};
  detail::train_transforms(state, name)
      .put(
          name,
          [options](const at::Tensor& image, Rng& draws) {
            return functional::augmix_image(image, draws, options);
          },
          rng);
}

TUTTI_INLINE void AugMix::close(State& state) const {
  if (state.train_transforms != nullptr) {
    state.train_transforms->remove(name);
  }
}

}  // namespace tutti
