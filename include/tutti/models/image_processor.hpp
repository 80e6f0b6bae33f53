// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/resize_and_crop.hpp>
#include <tutti/fused/normalize.hpp>
#include <tutti/models/pretrained_config.hpp>

/// What images have to be like for a pretrained model.
namespace tutti::models {

/// How a pretrained image model wants its images: their size, and mean and deviation of their
/// channels. The defaults are those of torchvision's weights for ImageNet.
///
///     const auto processor = tutti::models::ImageProcessor::read(folder);
///     auto set = tutti::data::load_image_folder("photos", {.fit = processor.fit});
///     tutti::Trainer trainer{model, options, processor.normalize()};   // loaders that give bytes
///     tutti::ImageLoader loader{set.images, set.labels,                // or floats at once
///                               {.mean = processor.mean, .std = processor.std}};
///
/// Where the middle of an image lies between two pixels, a folder of Transformers is cropped as its
/// image processors do, a folder of timm as torchvision does.
/// Source: Hugging Face Transformers, `preprocessor_config.json`; timm, `pretrained_cfg`.
struct ImageProcessor {
  std::vector<double> mean{0.485, 0.456, 0.406};  ///< of the channels, of values from 0 to 1
  std::vector<double> std{0.229, 0.224, 0.225};   ///< likewise; > 0
  double divisor = 255;                           ///< what bytes are divided by first
  data::ResizeAndCrop fit{};                      ///< to the size of the model's input

  /// Reads `preprocessor_config.json` of a folder of Transformers, or `pretrained_cfg` in
  /// `config.json` of timm's. Throws c10::Error (ValueError), naming the key and its value, for
  /// what is not supported, and when the folder has neither.
  static ImageProcessor read(const std::string& folder);

  /// The policy of a recipe that makes a loader's bytes what the model reads.
  [[nodiscard]] fused::Normalize normalize() const {
    return {.mean = mean, .std = std, .divisor = divisor};
  }

  /// Writes `preprocessor_config.json` into a folder that has none, for Transformers.
  void write(const std::string& folder) const;

  friend bool operator==(const ImageProcessor&, const ImageProcessor&) = default;
};

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/image_processor.inl.hpp>
#endif
