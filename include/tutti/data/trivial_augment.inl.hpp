// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/trivial_augment.hpp>

namespace tutti::data {

TUTTI_INLINE TrivialDraw TrivialAugmentWide::draw(Rng& rng) const {
  TUTTI_CHECK_VALUE(num_magnitude_bins >= 2, "TrivialAugmentWide: num_magnitude_bins is ",
                    num_magnitude_bins, ", expected 2 or more");
  struct Operation {
    std::optional<Augmentation> operation;
    float most;   // the largest strength
    bool either;  // way
  };
  static constexpr std::array<Operation, 14> operations{{{std::nullopt, 0, false},
                                                         {Augmentation::shear_x, 0.99F, true},
                                                         {Augmentation::shear_y, 0.99F, true},
                                                         {Augmentation::translate_x, 32, true},
                                                         {Augmentation::translate_y, 32, true},
                                                         {Augmentation::rotate, 135, true},
                                                         {Augmentation::brightness, 0.99F, true},
                                                         {Augmentation::color, 0.99F, true},
                                                         {Augmentation::contrast, 0.99F, true},
                                                         {Augmentation::sharpness, 0.99F, true},
                                                         {Augmentation::posterize, 6, false},
                                                         {Augmentation::solarize, 1, false},
                                                         {Augmentation::autocontrast, 0, false},
                                                         {Augmentation::equalize, 0, false}}};
  const Operation& one =
      operations[static_cast<std::size_t>(rng.integer(0, std::ssize(operations)))];
  TrivialDraw out{one.operation, 0};
  if (one.most == 0) {
    return out;
  }
  const std::int64_t bin = rng.integer(0, num_magnitude_bins);
  const auto last = static_cast<float>(num_magnitude_bins - 1);
  const auto between = [&](float from, float to) {  // as linspace does, from the nearer end
    const float step = (to - from) / last;
    return bin < num_magnitude_bins / 2 ? from + step * static_cast<float>(bin)
                                        : to - step * (last - static_cast<float>(bin));
  };
  if (one.operation == Augmentation::posterize) {
    out.magnitude =
        static_cast<double>(std::nearbyint(8 - static_cast<float>(bin) / (last / one.most)));
  } else if (one.operation == Augmentation::solarize) {
    out.magnitude = static_cast<double>(between(1, 0));
  } else {
    out.magnitude = static_cast<double>(between(0, one.most));
  }
  if (one.either && rng.uniform() <= 0.5) {
    out.magnitude = -out.magnitude;
  }
  return out;
}

TUTTI_INLINE at::Tensor trivial_augment(const at::Tensor& images, const TrivialDraw& draw,
                                        Interpolation interpolation) {
  detail::expect_bytes(images, "trivial_augment");
  if (!draw.operation) {
    return images;
  }
  const double by = draw.magnitude;
  switch (*draw.operation) {
    case Augmentation::autocontrast:
      return autocontrast(images);
    case Augmentation::equalize:
      return equalize(images);
    case Augmentation::posterize:
      return posterize(images, static_cast<int>(by));
    case Augmentation::rotate:
      return rotate(images, by, interpolation);
    case Augmentation::solarize:
      return solarize(images, static_cast<int>(std::ceil(255 * by)));
    case Augmentation::shear_x:
      return shear_x(images, by, interpolation);
    case Augmentation::shear_y:
      return shear_y(images, by, interpolation);
    case Augmentation::translate_x:
      return translate_x(images, -static_cast<std::int64_t>(by));
    case Augmentation::translate_y:
      return translate_y(images, -static_cast<std::int64_t>(by));
    case Augmentation::color:
    case Augmentation::color_original:
      return color(images, 1 + by);
    case Augmentation::contrast:
    case Augmentation::contrast_original:
      return contrast(images, 1 + by);
    case Augmentation::brightness:
    case Augmentation::brightness_original:
      return brightness(images, 1 + by);
    case Augmentation::sharpness:
    case Augmentation::sharpness_original:
      return sharpness(images, 1 + by);
  }
  TUTTI_CHECK_VALUE(false, "trivial_augment: there is no operation ",
                    static_cast<int>(*draw.operation));
}

}  // namespace tutti::data
