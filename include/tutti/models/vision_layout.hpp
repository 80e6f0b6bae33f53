// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/activation.hpp>

#include <torch/nn/module.h>

/// The libraries of Python whose files of image models are read and written.
namespace tutti::models {

/// Whose names the weights of an image model have in a file, and whose config.json stands beside
/// them.
enum class VisionLayout : std::uint8_t {
  torchvision,   ///< the names in memory; config.json says how to call the class in Python
  timm,          ///< config.json has `architecture`, `model_args` and `pretrained_cfg`
  timm_wrapper,  ///< timm's as Transformers keeps them: `timm_model.` before every name
  huggingface,   ///< Transformers' own `vit` and `resnet`
};

constexpr std::string_view to_string(VisionLayout layout) {
  constexpr std::string_view names[] = {"torchvision", "timm", "timm_wrapper", "huggingface"};
  return names[static_cast<std::size_t>(layout)];
}

/// Which class of image models a config describes.
enum class VisionFamily : std::uint8_t { vision_transformer, resnet };

/// Which library wrote a config. Throws c10::Error (ValueError) when it is none of these, naming
/// what is there.
VisionLayout vision_layout_of(const PretrainedConfig& config);

/// Which class reads it: VisionTransformer or ResNet. Throws c10::Error (ValueError) for any other.
VisionFamily vision_family_of(const PretrainedConfig& config);

namespace detail {

/// An image model's options by name, for comparing and for messages.
using NamedOptions = std::vector<std::pair<std::string_view, std::string>>;

/// What to do with a network of Python that is neither a vision transformer nor a ResNet.
inline constexpr std::string_view other_networks =
    "any other network of Python is exported by cmake/tutti_export.py and trained with "
    "load_compiled() (docs/compiled.md)";

/// Throws c10::Error (ValueError) when a config describes a network of the other class.
void expect_family(const PretrainedConfig& config, VisionFamily family);

/// timm's name of an architecture without the tag of its weights: "resnet18" of "resnet18.a1_in1k".
std::string timm_architecture(const PretrainedConfig& config);

/// Refuses, by its name and value, every key that is not in `known`, unless it is null or false.
void only_known(const PretrainedConfig& config, std::initializer_list<std::string_view> known);

/// The side of square images: a key that is a number, or [side, side]. Throws for others.
std::int64_t square_side(const PretrainedConfig& config, std::string_view name,
                         std::int64_t otherwise);

/// A size that a config says, and the largest that a network may have.
struct NamedSize {
  std::string_view name;
  std::int64_t value = 0;
  std::int64_t most = 10'000'000;
};

/// Refuses sizes below 1 and such as no network has, before one of them is made. Throws c10::Error
/// (ValueError) that names the config, the option and its value.
void check_sizes(const PretrainedConfig& config, const std::vector<NamedSize>& sizes);

/// What timm's `model_args`, the config itself and `pretrained_cfg` say, in this order of rank.
struct TimmCounts {
  std::int64_t num_classes = 1000;
  std::int64_t in_channels = 3;
};
TimmCounts timm_counts(const PretrainedConfig& config);

/// `hidden_act` of a config of Transformers. Throws c10::Error (ValueError) for one that there is
/// not.
nn::Activation vision_activation(const PretrainedConfig& config, std::string_view otherwise);

/// Sets it, unless the config says it already.
void set_activation(PretrainedConfig& config, nn::Activation activation,
                    std::string_view otherwise);

/// Gives a config of Transformers the labels of `num_classes` classes, unless it has as many.
void set_labels(PretrainedConfig& config, std::int64_t num_classes);

/// timm's `pretrained_cfg` of a model that has none: images as ImageNet's.
tutti::detail::Json timm_pretrained_cfg(std::int64_t in_channels, std::int64_t side,
                                        std::int64_t num_classes, std::string_view first_conv,
                                        std::string_view classifier);

/// Says in timm's `pretrained_cfg` how large the images are, where it says another size.
void set_timm_input(PretrainedConfig& config, std::int64_t in_channels, std::int64_t side);

/// The weight of a first convolution, [out, in, h, w], as that of `own`, for images of other
/// channels: the sum over them for one, else those of red, green and blue in turn, times 3 / in.
/// Throws c10::Error when the shapes differ elsewhere, or the file's has other than 3 channels (for
/// one: more).
/// Source: timm, `adapt_input_conv`.
at::Tensor adapt_input_conv(const at::Tensor& from_file, const at::Tensor& own);

/// Has the layout adapt the tensor of that convolution.
void adapt_first_conv(const at::Tensor& weight, WeightLayout& layout);

/// The child of a module by its name there.
inline const torch::nn::Module& child_of(const torch::nn::Module& parent, const std::string& name) {
  return *parent.named_children()[name];
}

/// Throws c10::Error (ValueError) naming the options by which what a config says differs from what
/// the model has: what the other library cannot express.
void expect_expressed(std::string_view model, VisionLayout layout, const NamedOptions& has,
                      const NamedOptions& says);

/// What write the options of a model into a config, for each library.
template <class Options>
struct ConfigWriters {
  void (*huggingface)(const Options&, PretrainedConfig&);
  void (*torchvision)(const Options&, PretrainedConfig&);
  void (*timm)(const Options&, PretrainedConfig&);
};

/// The config of a model in its layout. source: what it was made from, whose keys stay where that
/// was of the same layout.
template <class Options>
PretrainedConfig vision_config(const Options& options, const PretrainedConfig& source,
                               const ConfigWriters<Options>& write) {
  PretrainedConfig out;
  if (!source.values().empty() && vision_layout_of(source) == options.layout) {
    out = source;
  }
  if (options.layout == VisionLayout::huggingface) {
    write.huggingface(options, out);
  } else if (options.layout == VisionLayout::torchvision) {
    write.torchvision(options, out);
  } else {
    if (options.layout == VisionLayout::timm_wrapper) {
      out.set("architectures", tutti::detail::Json::Array{"TimmWrapperForImageClassification"});
      out.set("model_type", "timm_wrapper");
    }
    write.timm(options, out);
  }
  return out;
}

}  // namespace detail

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/vision_layout.inl.hpp>
#endif
