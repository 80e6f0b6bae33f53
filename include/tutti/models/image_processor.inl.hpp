// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <tutti/models/image_processor.hpp>

namespace tutti::models {

namespace detail {

TUTTI_INLINE std::vector<double> channel_values(const PretrainedConfig& config,
                                                std::string_view name,
                                                const std::vector<double>& otherwise) {
  const auto* value = config.find(name);
  if (value == nullptr) {
    return otherwise;
  }
  std::vector<double> out;
  for (std::size_t i = 0; i < value->size(); ++i) {
    if (!value->is_array() || !value->at(i).is_number() || !std::isfinite(value->at(i).number())) {
      config.refuse(name, "a list of numbers, one for each channel");
    }
    out.push_back(value->at(i).number());
  }
  if (out.empty()) {
    config.refuse(name, "a list of numbers, one for each channel");
  }
  return out;
}

// What a size says: sides that both have to be equal, or the shorter side.
struct ImageSize {
  std::int64_t pixels = 0;
  bool shorter = false;
};

TUTTI_INLINE ImageSize image_size(const PretrainedConfig& config, std::string_view name) {
  const auto* value = config.find(name);
  if (value == nullptr || !value->is_object()) {
    return {config.integer(name, 0), false};
  }
  const PretrainedConfig size = config.section(name);
  if (size.has("shortest_edge")) {
    if (size.has("longest_edge")) {
      size.refuse("longest_edge", "shortest_edge alone");
    }
    return {size.integer("shortest_edge"), true};
  }
  if (size.integer("height") != size.integer("width")) {
    config.refuse(name, "a square: height and width that are equal");
  }
  return {size.integer("height"), false};
}

// Whether an image loses rows or columns.
TUTTI_INLINE bool cuts_edges(const data::ResizeAndCrop& fit) {
  return fit.crop != 0 && !(fit.squash && fit.crop == fit.resize);
}

// Transformers': `size` and `crop_size`, or ConvNext's `size` and `crop_pct`.
TUTTI_INLINE data::ResizeAndCrop huggingface_fit(const PretrainedConfig& config) {
  config.only("resample", {0, 2, 3}, "0 is nearest, 2 bilinear, 3 bicubic");
  config.only("do_pad", {false});
  data::ResizeAndCrop out{.resize = 0, .crop = 0};
  const std::int64_t resample = config.integer("resample", 2);
  out.interpolation = resample == 3   ? data::Interpolation::bicubic
                      : resample == 0 ? data::Interpolation::nearest
                                      : data::Interpolation::bilinear;
  const std::string type =
      config.text("image_processor_type", config.text("feature_extractor_type", ""));
  const bool convnext = type.starts_with("ConvNext");
  if (config.flag("do_resize", true)) {
    ImageSize size = image_size(config, "size");
    size.shorter = size.shorter || convnext;
    if (size.pixels == 0) {
      size.pixels = 224;
    }
    out.resize = size.pixels;
    out.squash = !size.shorter;
    if (convnext) {
      constexpr std::int64_t large = 384;  // from here on images are not cropped
      out.squash = size.pixels >= large;
      out.crop = size.pixels;
      if (!out.squash) {
        out.resize = static_cast<std::int64_t>(static_cast<double>(size.pixels) /
                                               config.number("crop_pct", 224.0 / 256));
      }
    } else if (out.squash) {
      out.crop = size.pixels;
    }
  }
  if (config.flag("do_center_crop", false)) {
    out.crop = image_size(config, "crop_size").pixels;
  }
  out.floor_center = cuts_edges(out) && config.flag("floor_center", true);
  return out;
}

TUTTI_INLINE ImageProcessor from_preprocessor(const PretrainedConfig& config) {
  ImageProcessor out;
  out.fit = huggingface_fit(config);
  out.divisor = 1;
  if (config.flag("do_rescale", true)) {
    const double factor = config.number("rescale_factor", 1.0 / 255);
    out.divisor = std::abs(factor * 255 - 1) < 1e-9 ? 255 : 1 / factor;
  }
  out.mean.clear();
  out.std.clear();
  if (config.flag("do_normalize", true)) {
    out.mean = channel_values(config, "image_mean", {0.5, 0.5, 0.5});
    out.std = channel_values(config, "image_std", {0.5, 0.5, 0.5});
  }
  return out;
}

TUTTI_INLINE ImageProcessor from_pretrained_cfg(const PretrainedConfig& config) {
  config.only("crop_mode", {"center", "squash"});
  config.only("interpolation", {"bilinear", "bicubic"});
  ImageProcessor out;
  out.mean = channel_values(config, "mean", out.mean);
  out.std = channel_values(config, "std", out.std);
  const auto input = config.integers("input_size");
  if (input.size() == 3 && input[1] != input[2]) {
    config.refuse("input_size", "the size of square images");
  }
  out.fit.crop = input.size() == 3 ? input[1] : 224;
  const double kept = config.number("crop_pct", 0.875);
  out.fit.resize = static_cast<std::int64_t>(static_cast<double>(out.fit.crop) / kept);
  out.fit.squash = config.text("crop_mode", "center") == "squash";
  out.fit.interpolation = config.text("interpolation", "bicubic") == "bilinear"
                              ? data::Interpolation::bilinear
                              : data::Interpolation::bicubic;
  return out;
}

}  // namespace detail

TUTTI_INLINE ImageProcessor ImageProcessor::read(const std::string& folder) {
  const std::string path = folder + "/preprocessor_config.json";
  if (::access(path.c_str(), F_OK) == 0) {  // what is no regular file is refused where it is read
    const auto json = checkpoint::read_json(path);
    TUTTI_CHECK_VALUE(json.is_object(), "'", path, "' is ", json.kind(), ", expected an object");
    return detail::from_preprocessor(PretrainedConfig(json.object(), "'" + path + "'"));
  }
  const auto config = PretrainedConfig::read(folder);
  TUTTI_CHECK_VALUE(config.has("pretrained_cfg"), "'", folder,
                    "' has no preprocessor_config.json, and its config.json no pretrained_cfg; "
                    "expected one of them to say what images the model reads");
  return detail::from_pretrained_cfg(config.section("pretrained_cfg"));
}

TUTTI_INLINE void ImageProcessor::write(const std::string& folder) const {
  using Json = tutti::detail::Json;
  const auto square = [](std::int64_t side) {
    return Json::Object{{"height", side}, {"width", side}};
  };
  const bool whole = fit.squash && fit.crop == fit.resize;
  Json::Object out{
      {"image_processor_type", whole ? "ViTImageProcessor" : "BitImageProcessor"},
      {"do_resize", fit.resize != 0},
      {"size", fit.squash ? square(fit.resize) : Json::Object{{"shortest_edge", fit.resize}}},
      {"resample", fit.interpolation == data::Interpolation::bicubic    ? 3
                   : fit.interpolation == data::Interpolation::bilinear ? 2
                                                                        : 0},
      {"do_center_crop", !whole && fit.crop != 0},
      {"crop_size", square(fit.crop)},
      {"do_rescale", divisor != 1},
      {"rescale_factor", 1 / divisor},
      {"do_normalize", !mean.empty() || !std.empty()}};
  if (!mean.empty() || !std.empty()) {
    const std::size_t channels = std::max(mean.size(), std.size());
    const auto list = [&](const std::vector<double>& values, double none) {
      const std::vector<double> all = values.empty() ? std::vector<double>(channels, none) : values;
      return Json::Array(all.begin(), all.end());
    };
    out.emplace_back("image_mean", list(mean, 0));
    out.emplace_back("image_std", list(std, 1));
  }
  if (detail::cuts_edges(fit) && !fit.floor_center) {
    out.emplace_back("floor_center", false);  // for read(); Transformers knows one way alone
  }
  checkpoint::write_json(folder + "/preprocessor_config.json", out);
}

}  // namespace tutti::models
