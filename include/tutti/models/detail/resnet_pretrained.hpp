// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/resnet.hpp>

/// What files of weights have to do with a residual network; include <tutti/models/resnet.hpp>.
namespace tutti::models::detail {

ResNetOptions resnet_from_huggingface(const PretrainedConfig& config);
ResNetOptions resnet_from_timm(const PretrainedConfig& config);
ResNetOptions resnet_from_torchvision(const PretrainedConfig& config);

/// The options by name, what is not set as what it means; how weights are drawn is left out.
NamedOptions named_options(const ResNetOptions& options);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models {

namespace detail {

TUTTI_INLINE tutti::detail::Json json_list(const std::vector<std::int64_t>& values) {
  return tutti::detail::Json::Array(values.begin(), values.end());
}

TUTTI_INLINE NamedOptions named_options(const ResNetOptions& o) {
  const auto text = [](auto value) { return to_text(tutti::detail::Json(value)); };
  const std::int64_t stem_width = o.stem_width != 0 ? o.stem_width : o.widths.front();
  return {{"block", o.block == Block::basic ? "basic" : "bottleneck"},
          {"layers", to_text(json_list(o.layers))},
          {"widths", to_text(json_list(o.widths))},
          {"stem", o.stem == Stem::imagenet ? "imagenet" : "small"},
          {"stem_width", text(stem_width)},
          {"in_channels", text(o.in_channels)},
          {"num_classes", text(o.num_classes)},
          {"groups", text(o.groups)},
          {"width_per_group", text(o.width_per_group)},
          {"downsample_in_first_stage", text(o.downsample_in_first_stage)},
          {"downsample_in_bottleneck", text(o.downsample_in_bottleneck)},
          {"hidden_act", std::string(nn::to_string(o.hidden_act))}};
}

TUTTI_INLINE ResNetOptions resnet_from_huggingface(const PretrainedConfig& config) {
  config.only("model_type", {"resnet"});
  config.only("layer_type", {"basic", "bottleneck"});
  ResNetOptions out;
  out.hidden_act = vision_activation(config, "relu");
  out.block = config.text("layer_type", "bottleneck") == "basic" ? Block::basic : Block::bottleneck;
  out.layers =
      config.has("depths") ? config.integers("depths") : std::vector<std::int64_t>{3, 4, 6, 3};
  out.widths = config.has("hidden_sizes") ? config.integers("hidden_sizes")
                                          : std::vector<std::int64_t>{256, 512, 1024, 2048};
  if (out.block == Block::bottleneck) {
    for (std::int64_t& width : out.widths) {
      if (width % BottleneckImpl::expansion != 0) {
        config.refuse("hidden_sizes", "multiples of 4 with the layer_type \"bottleneck\"");
      }
      width /= BottleneckImpl::expansion;
    }
    out.downsample_in_bottleneck = config.flag("downsample_in_bottleneck", false);
  }
  out.stem_width = config.integer("embedding_size", 64);
  out.in_channels = config.integer("num_channels", 3);
  out.num_classes = config.num_labels();
  out.downsample_in_first_stage = config.flag("downsample_in_first_stage", false);
  out.layout = VisionLayout::huggingface;
  return out;
}

// A network that timm calls by that name, and mostly torchvision, too.
struct NamedResNet {
  std::string_view name;
  Block block;
  std::vector<std::int64_t> layers;
  std::int64_t groups = 1;
  std::int64_t width_per_group = 64;
  bool only_timm = false;
};

TUTTI_INLINE const std::vector<NamedResNet>& named_resnets() {
  static const std::vector<NamedResNet> all{
      {"resnet18", Block::basic, {2, 2, 2, 2}},
      {"resnet34", Block::basic, {3, 4, 6, 3}},
      {"resnet50", Block::bottleneck, {3, 4, 6, 3}},
      {"resnet101", Block::bottleneck, {3, 4, 23, 3}},
      {"resnet152", Block::bottleneck, {3, 8, 36, 3}},
      {"resnext50_32x4d", Block::bottleneck, {3, 4, 6, 3}, 32, 4},
      {"resnext101_32x4d", Block::bottleneck, {3, 4, 23, 3}, 32, 4},
      {"resnext101_32x8d", Block::bottleneck, {3, 4, 23, 3}, 32, 8},
      {"resnext101_64x4d", Block::bottleneck, {3, 4, 23, 3}, 64, 4},
      {"wide_resnet50_2", Block::bottleneck, {3, 4, 6, 3}, 1, 128},
      {"wide_resnet101_2", Block::bottleneck, {3, 4, 23, 3}, 1, 128},
      {"resnet26", Block::bottleneck, {2, 2, 2, 2}, 1, 64, true},
      {"resnet200", Block::bottleneck, {3, 24, 36, 3}, 1, 64, true},
      {"resnext101_32x16d", Block::bottleneck, {3, 4, 23, 3}, 32, 16, true},
      {"resnext101_32x32d", Block::bottleneck, {3, 4, 23, 3}, 32, 32, true}};
  return all;
}

// The network that a key of the config names; refuses the key for others.
TUTTI_INLINE ResNetOptions resnet_by_name(const PretrainedConfig& config, std::string_view key,
                                          std::string_view name) {
  std::string known;
  for (const NamedResNet& one : named_resnets()) {
    if (one.only_timm && key == "function") {
      continue;
    }
    if (one.name == name) {
      ResNetOptions out;
      out.block = one.block;
      out.layers = one.layers;
      out.groups = one.groups;
      out.width_per_group = one.width_per_group;
      out.stem_width = 64;  // whatever the widths are
      return out;
    }
    known += (known.empty() ? "" : ", ") + std::string(one.name);
  }
  config.refuse(key, "one of " + known + "; " + std::string(other_networks));
}

// Arguments of timm's ResNet that make another computation.
TUTTI_INLINE void refuse_resnet_arguments(const PretrainedConfig& args) {
  only_known(args, {"layers", "channels", "cardinality", "base_width", "in_chans", "num_classes",
                    "global_pool", "output_stride", "stem_width", "stem_type", "block_reduce_first",
                    "down_kernel_size", "act_layer", "drop_rate", "drop_path_rate",
                    "drop_block_rate", "zero_init_last"});
  args.only("output_stride", {32});
  args.only("stem_width", {64}, "deep stems (the -D variants) are not supported");
  args.only("stem_type", {""}, "deep stems (the -D variants) are not supported");
  args.only("block_reduce_first", {1});
  args.only("down_kernel_size", {1});
  args.only("act_layer", {"relu"});
  args.only("drop_rate", {0});
  args.only("drop_path_rate", {0}, "train with StochasticDepth instead");
  args.only("drop_block_rate", {0});
}

TUTTI_INLINE ResNetOptions resnet_from_timm(const PretrainedConfig& config) {
  const PretrainedConfig args = config.section("model_args");
  refuse_resnet_arguments(args);
  ResNetOptions out = resnet_by_name(config, "architecture", timm_architecture(config));
  if (args.has("layers")) {
    out.layers = args.integers("layers");
  }
  if (args.has("channels")) {
    out.widths = args.integers("channels");
  }
  out.groups = args.integer("cardinality", out.groups);
  out.width_per_group = args.integer("base_width", out.width_per_group);
  for (const PretrainedConfig& says : {args, config.section("pretrained_cfg"), config}) {
    says.only("global_pool", {"avg"});
  }
  const TimmCounts counts = timm_counts(config);
  out.num_classes = counts.num_classes;
  out.in_channels = counts.in_channels;
  out.layout = vision_layout_of(config);
  return out;
}

TUTTI_INLINE ResNetOptions resnet_from_torchvision(const PretrainedConfig& config) {
  only_known(config, {"class", "function", "block", "layers", "num_classes", "groups",
                      "width_per_group", "zero_init_residual", "dtype"});
  config.only("class", {"torchvision.models.ResNet"});
  config.only("block", {"BasicBlock", "Bottleneck"});
  constexpr std::string_view package = "torchvision.models.";
  ResNetOptions out;
  if (const std::string name = config.text("function", ""); !name.empty()) {
    out = resnet_by_name(config, "function", name.substr(package.size()));
  }
  if (config.has("block")) {
    out.block = config.text("block", "") == "BasicBlock" ? Block::basic : Block::bottleneck;
  }
  if (config.has("layers")) {
    out.layers = config.integers("layers");
  }
  out.stem_width = 64;
  out.num_classes = config.integer("num_classes", 1000);
  out.groups = config.integer("groups", out.groups);
  out.width_per_group = config.integer("width_per_group", out.width_per_group);
  out.zero_init_residual = config.flag("zero_init_residual", false);
  return out;
}

// What config() writes, over what is there already.
TUTTI_INLINE void write_huggingface(const ResNetOptions& o, PretrainedConfig& out) {
  using Json = tutti::detail::Json;
  const bool basic = o.block == Block::basic;
  std::vector<std::int64_t> hidden = o.widths;
  for (std::int64_t& width : hidden) {
    width *= basic ? BasicBlockImpl::expansion : BottleneckImpl::expansion;
  }
  out.set("architectures", Json::Array{"ResNetForImageClassification"});
  out.set("model_type", "resnet");
  out.set("layer_type", basic ? "basic" : "bottleneck");
  out.set("depths", json_list(o.layers));
  out.set("hidden_sizes", json_list(hidden));
  out.set("embedding_size", o.stem_width != 0 ? o.stem_width : o.widths.front());
  out.set("num_channels", o.in_channels);
  set_activation(out, o.hidden_act, "relu");
  out.set("downsample_in_first_stage", o.downsample_in_first_stage);
  if (!basic || !out.has("downsample_in_bottleneck")) {
    out.set("downsample_in_bottleneck", o.downsample_in_bottleneck);
  }
  set_labels(out, o.num_classes);
}

TUTTI_INLINE void write_timm(const ResNetOptions& o, PretrainedConfig& out) {
  const bool basic = o.block == Block::basic;
  for (const NamedResNet& one : named_resnets()) {
    if (!out.has("architecture") && one.block == o.block && one.layers == o.layers &&
        one.groups == o.groups && one.width_per_group == o.width_per_group) {
      out.set("architecture", one.name);
    }
  }
  out.set_default("architecture", basic ? "resnet18" : "resnet50");
  out.set("num_classes", o.num_classes);
  out.set("num_features",
          o.widths.back() * (basic ? BasicBlockImpl::expansion : BottleneckImpl::expansion));
  out.set_default("pretrained_cfg",
                  timm_pretrained_cfg(o.in_channels, 224, o.num_classes, "conv1", "fc"));
  PretrainedConfig args = out.section("model_args");
  const ResNetOptions says = resnet_from_timm(out);
  const auto differs = [&](const char* name, const auto& there, const auto& here,
                           tutti::detail::Json value) {
    if (there != here) {
      args.set(name, std::move(value));
    }
  };
  differs("layers", says.layers, o.layers, json_list(o.layers));
  differs("channels", says.widths, o.widths, json_list(o.widths));
  differs("cardinality", says.groups, o.groups, o.groups);
  differs("base_width", says.width_per_group, o.width_per_group, o.width_per_group);
  differs("in_chans", says.in_channels, o.in_channels, o.in_channels);
  differs("num_classes", says.num_classes, o.num_classes, o.num_classes);
  if (!args.values().empty()) {
    out.set("model_args", args.values());
  }
}

TUTTI_INLINE void write_torchvision(const ResNetOptions& o, PretrainedConfig& out) {
  out.erase("function");
  out.erase("class");
  out.erase("block");
  out.erase("layers");
  for (const NamedResNet& one : named_resnets()) {
    if (one.name.starts_with("resnet") && !one.only_timm && one.block == o.block &&
        one.layers == o.layers) {
      out.set("function", "torchvision.models." + std::string(one.name));
    }
  }
  if (!out.has("function")) {
    out.set("class", "torchvision.models.ResNet");
    out.set("block", o.block == Block::basic ? "BasicBlock" : "Bottleneck");
    out.set("layers", json_list(o.layers));
  }
  out.set("num_classes", o.num_classes);
  out.set("groups", o.groups);
  out.set("width_per_group", o.width_per_group);
}

// The convolutions of a block with the normalisation after each, by Hugging Face's names.
template <class B>
void add_huggingface_block(const B& block, const std::string& name, WeightLayout& layout) {
  if (block.downsample) {
    layout.add_module(name + "shortcut.convolution.", child_of(*block.downsample, "0"));
    layout.add_module(name + "shortcut.normalization.", child_of(*block.downsample, "1"));
  }
  for (int k = 0; k < (B::expansion == 1 ? 2 : 3); ++k) {
    const std::string number = std::to_string(k + 1);
    const std::string layer = name + "layer." + std::to_string(k) + ".";
    layout.add_module(layer + "convolution.", child_of(block, "conv" + number));
    layout.add_module(layer + "normalization.", child_of(block, "bn" + number));
  }
}

TUTTI_INLINE void add_huggingface(const ResNetImpl& net, WeightLayout& layout) {
  layout.add_module("resnet.embedder.embedder.convolution.", *net.conv1);
  layout.add_module("resnet.embedder.embedder.normalization.", *net.bn1);
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    const nn::SequentialImpl& stage = *net.stages[s];
    for (std::size_t b = 0; b < stage.size(); ++b) {
      const std::string name =
          "resnet.encoder.stages." + std::to_string(s) + ".layers." + std::to_string(b) + ".";
      if (net.options().block == Block::basic) {
        add_huggingface_block(stage.at<BasicBlockImpl>(b), name, layout);
      } else {
        add_huggingface_block(stage.at<BottleneckImpl>(b), name, layout);
      }
    }
  }
  layout.add_module("classifier.1.", *net.fc);
  layout.base_prefix = "resnet.";
  layout.heads = {"classifier."};
  layout.may_be_missing = {"classifier."};
}

}  // namespace detail

TUTTI_INLINE ResNetOptions ResNetImpl::options_from(const PretrainedConfig& config) {
  detail::expect_family(config, VisionFamily::resnet);
  const VisionLayout layout = vision_layout_of(config);
  const ResNetOptions out =
      layout == VisionLayout::huggingface   ? detail::resnet_from_huggingface(config)
      : layout == VisionLayout::torchvision ? detail::resnet_from_torchvision(config)
                                            : detail::resnet_from_timm(config);
  constexpr std::int64_t most_channels = 1'000'000;
  std::vector<detail::NamedSize> sizes{{"num_classes", out.num_classes},
                                       {"in_channels", out.in_channels, most_channels},
                                       {"groups", out.groups, most_channels},
                                       {"width_per_group", out.width_per_group, most_channels},
                                       {"stem_width", out.stem_width, most_channels}};
  for (const std::int64_t blocks : out.layers) {
    sizes.push_back({"layers", blocks, 10'000});
  }
  for (const std::int64_t width : out.widths) {
    sizes.push_back({"widths", width, most_channels});
  }
  detail::check_sizes(config, sizes);
  return out;
}

TUTTI_INLINE WeightLayout ResNetImpl::weight_layout(VisionLayout layout) const {
  if (layout == VisionLayout::huggingface) {
    WeightLayout out{.model = "ResNetForImageClassification"};
    detail::add_huggingface(*this, out);
    detail::adapt_first_conv(conv1->weight, out);
    return out;
  }
  const std::string prefix = layout == VisionLayout::timm_wrapper ? "timm_model." : "";
  WeightLayout out{.model = "ResNet", .base_prefix = prefix};
  for (const auto& entry : named_modules("", /*include_self=*/false)) {  // as a state dict has them
    for (const auto& tensors : {entry.value()->named_parameters(/*recurse=*/false),
                                entry.value()->named_buffers(/*recurse=*/false)}) {
      for (const auto& tensor : tensors) {
        out.add(prefix + entry.key() + '.' + tensor.key(), tensor.value());
      }
    }
  }
  out.may_be_missing = {prefix + "fc."};
  for (const char* name : {"conv1.0.*", "layer1.0.downsample.2.*"}) {
    out.refused.emplace_back(prefix + name,
                             "it belongs to a variant with a deep stem or pooled shortcuts (-D), "
                             "which is not supported");
  }
  detail::adapt_first_conv(conv1->weight, out);
  return out;
}

TUTTI_INLINE PretrainedConfig ResNetImpl::config() const {
  const VisionLayout layout = options_.layout;
  TUTTI_CHECK_VALUE(layout == VisionLayout::huggingface || options_.layers.size() == 4,
                    "ResNet: a config of ", to_string(layout),
                    " cannot express this model: it has ", options_.layers.size(),
                    " stages (there 4); choose another layout with "
                    "set_layout()");
  const PretrainedConfig out = detail::vision_config<ResNetOptions>(
      options_, source_config,
      {detail::write_huggingface, detail::write_torchvision, detail::write_timm});
  detail::expect_expressed("ResNet", layout, detail::named_options(options_),
                           detail::named_options(options_from(out)));
  return out;
}

}  // namespace tutti::models

#endif
