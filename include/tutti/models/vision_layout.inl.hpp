// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/vision_layout.hpp>

namespace tutti::models {

TUTTI_INLINE VisionLayout vision_layout_of(const PretrainedConfig& config) {
  const std::string type = config.model_type();
  if (type == "timm_wrapper") {
    return VisionLayout::timm_wrapper;
  }
  if (type == "vit" || type == "resnet") {
    return VisionLayout::huggingface;
  }
  TUTTI_CHECK_VALUE(type.empty(), config.origin(), ": model_type is \"", type,
                    "\", expected \"vit\", \"resnet\" or \"timm_wrapper\" for an image model; ",
                    detail::other_networks);
  if (config.has("architecture")) {
    return VisionLayout::timm;
  }
  if (config.text("class", config.text("function", "")).starts_with("torchvision.models.")) {
    return VisionLayout::torchvision;
  }
  ::tutti::detail::raise<c10::ValueError>(
      {__func__, __FILE__, __LINE__},
      config.origin() +
          ": there is neither a model_type of Transformers, nor an architecture of timm, nor a "
          "class or function of torchvision.models; expected the config of an image model");
}

namespace detail {

// What the library that wrote the config calls the network.
TUTTI_INLINE std::string vision_name(const PretrainedConfig& config) {
  switch (vision_layout_of(config)) {
    case VisionLayout::huggingface:
      return config.model_type();
    case VisionLayout::torchvision:
      return config.text("class", config.text("function", "")).substr(19);  // torchvision.models.
    default:
      return timm_architecture(config);
  }
}

TUTTI_INLINE std::optional<VisionFamily> family_of_name(std::string_view name) {
  const auto begins = [&](std::string_view start) { return name.starts_with(start); };
  if (begins("vit") || begins("VisionTransformer") || begins("deit")) {
    return VisionFamily::vision_transformer;
  }
  if (begins("resn") || begins("ResNet") || begins("wide_resnet")) {
    return VisionFamily::resnet;
  }
  return std::nullopt;
}

}  // namespace detail

TUTTI_INLINE VisionFamily vision_family_of(const PretrainedConfig& config) {
  const std::string name = detail::vision_name(config);
  const auto family = detail::family_of_name(name);
  TUTTI_CHECK_VALUE(
      family, config.origin(), ": the architecture is \"", name,
      "\", expected a vision transformer (vit_*, deit_*) or a residual network (resnet*, resnext*, "
      "wide_resnet*); ",
      detail::other_networks);
  return *family;
}

namespace detail {

TUTTI_INLINE at::Tensor adapt_input_conv(const at::Tensor& from_file, const at::Tensor& own) {
  const std::int64_t channels = own.size(1);
  const bool fits = from_file.dim() == 4 && from_file.size(0) == own.size(0) &&
                    from_file.sizes().slice(2) == own.sizes().slice(2) &&
                    (from_file.size(1) == 3 || (channels == 1 && from_file.size(1) < 3));
  TUTTI_CHECK(fits, "models: the first convolution is ", from_file.sizes(), " in the file and ",
              own.sizes(),
              " in the model, expected a difference in the channels alone, of which "
              "the file has 3");
  const at::Tensor w = from_file.to(at::kFloat);
  if (channels == 1) {
    return w.sum(1, /*keepdim=*/true).to(from_file.scalar_type());
  }
  const at::Tensor repeated = w.repeat({1, (channels + 2) / 3, 1, 1}).narrow(1, 0, channels);
  return repeated.mul(3.0 / static_cast<double>(channels)).to(from_file.scalar_type());
}

TUTTI_INLINE void adapt_first_conv(const at::Tensor& weight, WeightLayout& layout) {
  for (DiskTensor& tensor : layout.tensors) {
    if (tensor.tensor.is_alias_of(weight)) {
      tensor.adapt_if_ignored = [own = tensor.tensor](const at::Tensor& from_file) {
        return adapt_input_conv(from_file, own);
      };
    }
  }
}

TUTTI_INLINE void expect_family(const PretrainedConfig& config, VisionFamily family) {
  const std::string name = vision_name(config);
  const auto is = family_of_name(name);
  const bool wants_vit = family == VisionFamily::vision_transformer;
  TUTTI_CHECK_VALUE(!is || *is == family, config.origin(), ": the architecture is \"", name,
                    "\", expected a ", wants_vit ? "vision transformer" : "residual network",
                    "; read this folder by from_pretrained<",
                    wants_vit ? "ResNet" : "VisionTransformer",
                    "> or auto_model_for_image_classification()");
}

TUTTI_INLINE std::string timm_architecture(const PretrainedConfig& config) {
  const std::string name = config.text("architecture", "");
  return name.substr(0, name.find('.'));
}

TUTTI_INLINE void only_known(const PretrainedConfig& config,
                             std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : config.values()) {
    const bool off = value.is_null() || (value.is_bool() && !value.boolean());
    if (!off && std::find(known.begin(), known.end(), name) == known.end()) {
      config.refuse(name, "that it is absent, null or false");
    }
  }
}

TUTTI_INLINE std::int64_t square_side(const PretrainedConfig& config, std::string_view name,
                                      std::int64_t otherwise) {
  const std::vector<std::int64_t> sides = config.integers(name);
  if (sides.empty()) {
    return otherwise;
  }
  if (sides.size() > 2 || sides.front() != sides.back()) {
    config.refuse(name, "one number, or two equal ones: images and patches are squares");
  }
  return sides.front();
}

TUTTI_INLINE nn::Activation vision_activation(const PretrainedConfig& config,
                                              std::string_view otherwise) {
  const auto known = nn::activation_named(config.text("hidden_act", otherwise));
  if (!known) {
    config.refuse("hidden_act", "one of " + nn::activation_names());
  }
  return *known;
}

TUTTI_INLINE void set_activation(PretrainedConfig& config, nn::Activation activation,
                                 std::string_view otherwise) {
  if (!config.has("hidden_act") || vision_activation(config, otherwise) != activation) {
    config.set("hidden_act", std::string(nn::to_string(activation)));
  }
}

TUTTI_INLINE void check_sizes(const PretrainedConfig& config, const std::vector<NamedSize>& sizes) {
  for (const NamedSize& size : sizes) {
    TUTTI_CHECK_VALUE(size.value >= 1 && size.value <= size.most, config.origin(), ": ", size.name,
                      " is ", size.value, ", expected an integer from 1 to ", size.most);
  }
}

TUTTI_INLINE TimmCounts timm_counts(const PretrainedConfig& config) {
  const PretrainedConfig args = config.section("model_args");
  const PretrainedConfig pretrained = config.section("pretrained_cfg");
  const auto input = pretrained.integers("input_size");
  TimmCounts out;
  out.num_classes = args.integer(
      "num_classes", config.integer("num_classes", pretrained.integer("num_classes", 1000)));
  TUTTI_CHECK_VALUE(out.num_classes != 0, config.origin(),
                    ": num_classes is 0, a network without a head, which gives features; set the "
                    "number of classes with edit_config (config.set(\"num_classes\", 10)) and "
                    "allow_new_heads, so that the head is new");
  out.in_channels = args.integer("in_chans", input.size() == 3 ? input.front() : 3);
  return out;
}

TUTTI_INLINE void set_labels(PretrainedConfig& config, std::int64_t num_classes) {
  config.erase("num_labels");
  if (config.has("id2label") && config.num_labels() == num_classes) {
    return;
  }
  tutti::detail::Json::Object by_id;
  tutti::detail::Json::Object by_label;
  for (std::int64_t i = 0; i < num_classes; ++i) {
    const std::string label = "LABEL_" + std::to_string(i);
    by_id.emplace_back(std::to_string(i), label);
    by_label.emplace_back(label, i);
  }
  config.set("id2label", std::move(by_id));
  config.set("label2id", std::move(by_label));
}

TUTTI_INLINE tutti::detail::Json timm_pretrained_cfg(std::int64_t in_channels, std::int64_t side,
                                                     std::int64_t num_classes,
                                                     std::string_view first_conv,
                                                     std::string_view classifier) {
  using tutti::detail::Json;
  return Json::Object{{"input_size", Json::Array{in_channels, side, side}},
                      {"interpolation", "bicubic"},
                      {"crop_pct", 0.9},
                      {"crop_mode", "center"},
                      {"mean", Json::Array{0.485, 0.456, 0.406}},
                      {"std", Json::Array{0.229, 0.224, 0.225}},
                      {"num_classes", num_classes},
                      {"first_conv", first_conv},
                      {"classifier", classifier}};
}

TUTTI_INLINE void set_timm_input(PretrainedConfig& config, std::int64_t in_channels,
                                 std::int64_t side) {
  PretrainedConfig pretrained = config.section("pretrained_cfg");
  const std::vector<std::int64_t> input{in_channels, side, side};
  if (pretrained.has("input_size") && pretrained.integers("input_size") != input) {
    pretrained.set("input_size", tutti::detail::Json::Array{in_channels, side, side});
    config.set("pretrained_cfg", pretrained.values());
  }
}

TUTTI_INLINE void expect_expressed(std::string_view model, VisionLayout layout,
                                   const NamedOptions& has, const NamedOptions& says) {
  std::string differences;
  for (std::size_t i = 0; i < has.size(); ++i) {
    if (has[i] != says[i]) {
      differences += (differences.empty() ? "" : ", ") + std::string(has[i].first) + " is " +
                     has[i].second + " (there " + says[i].second + ")";
    }
  }
  TUTTI_CHECK_VALUE(differences.empty(), model, ": a config of ", to_string(layout),
                    " cannot express this model: ", differences,
                    "; choose another layout with set_layout()");
}

}  // namespace detail

}  // namespace tutti::models
