// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/vit.hpp>

#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/upsample_bicubic2d.h>

/// What files of weights have to do with a vision transformer; include <tutti/models/vit.hpp>.
namespace tutti::models::detail {

/// Positions [1, prefix + rows * rows, C] of a square grid for one of side * side; the first
/// `prefix` stay as they are. Bicubic, as the library does it. Throws c10::Error for other shapes.
at::Tensor resample_positions(const at::Tensor& positions, std::int64_t prefix, std::int64_t side,
                              VisionLayout layout);

VisionTransformerOptions vit_from_huggingface(const PretrainedConfig& config);
VisionTransformerOptions vit_from_timm(const PretrainedConfig& config);
VisionTransformerOptions vit_from_torchvision(const PretrainedConfig& config);

/// The options by name, what is not set as what it means.
NamedOptions named_options(const VisionTransformerOptions& options);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models {

namespace detail {

TUTTI_INLINE at::Tensor resample_positions(const at::Tensor& positions, std::int64_t prefix,
                                           std::int64_t side, VisionLayout layout) {
  const std::int64_t count = positions.dim() == 3 ? positions.size(1) - prefix : 0;
  const std::int64_t old =
      std::llround(std::sqrt(static_cast<double>(std::max<std::int64_t>(count, 0))));
  TUTTI_CHECK(count > 0 && positions.size(0) == 1 && old * old == count,
              "VisionTransformer: the positions are ", positions.sizes(), ", expected [1, ", prefix,
              " + n * n, width], those of a square grid");
  const at::Tensor grid = positions.narrow(1, prefix, count)
                              .to(at::kFloat)
                              .reshape({1, old, old, positions.size(2)})
                              .permute({0, 3, 1, 2});
  const bool antialias = layout == VisionLayout::timm || layout == VisionLayout::timm_wrapper;
  const bool align_corners = layout == VisionLayout::torchvision;
  const at::Tensor resized = antialias
                                 ? at::_upsample_bicubic2d_aa(grid, {side, side}, align_corners)
                                 : at::upsample_bicubic2d(grid, {side, side}, align_corners);
  const at::Tensor flat = resized.permute({0, 2, 3, 1}).reshape({1, side * side, -1});
  return at::cat({positions.narrow(1, 0, prefix), flat.to(positions.scalar_type())}, 1);
}

TUTTI_INLINE NamedOptions named_options(const VisionTransformerOptions& o) {
  const auto text = [](auto value) { return to_text(tutti::detail::Json(value)); };
  return {{"image_size", text(o.image_size)},
          {"patch_size", text(o.patch_size)},
          {"num_layers", text(o.num_layers)},
          {"num_heads", text(o.num_heads)},
          {"hidden_dim", text(o.hidden_dim)},
          {"mlp_dim", text(o.mlp_dim)},
          {"dropout", text(o.dropout)},
          {"attention_dropout", text(o.attention_dropout)},
          {"num_classes", text(o.num_classes)},
          {"representation_size", text(o.representation_size)},
          {"in_channels", text(o.in_channels)},
          {"qkv_bias", text(o.qkv_bias)},
          {"init_values", text(o.init_values)},
          {"global_pool", o.global_pool == VitPool::avg ? "avg" : "token"},
          {"fc_norm", text(o.fc_norm.value_or(o.global_pool == VitPool::avg))},
          {"class_token", text(o.class_token)},
          {"layer_norm_eps", text(o.layer_norm_eps)},
          {"hidden_act", std::string(nn::to_string(o.hidden_act))},
          {"activation_dropout", text(o.activation_dropout.value_or(o.dropout))},
          {"position_dropout", text(o.position_dropout.value_or(o.dropout))},
          {"head_dropout", text(o.head_dropout)}};
}

TUTTI_INLINE VisionTransformerOptions vit_from_huggingface(const PretrainedConfig& config) {
  config.only("model_type", {"vit"});
  VisionTransformerOptions out;
  out.image_size = square_side(config, "image_size", 224);
  out.patch_size = square_side(config, "patch_size", 16);
  out.num_layers = config.integer("num_hidden_layers", 12);
  out.num_heads = config.integer("num_attention_heads", 12);
  out.hidden_dim = config.integer("hidden_size", 768);
  out.mlp_dim = config.integer("intermediate_size", 3072);
  out.dropout = config.number_in("hidden_dropout_prob", 0, 0, 1);
  out.activation_dropout = 0;
  out.attention_dropout = config.number_in("attention_probs_dropout_prob", 0, 0, 1);
  out.num_classes = config.num_labels();
  out.in_channels = config.integer("num_channels", 3);
  out.qkv_bias = config.flag("qkv_bias", true);
  out.layer_norm_eps = config.number_in("layer_norm_eps", 1e-12, 0, 1e6);
  out.hidden_act = vision_activation(config, "gelu");
  out.layout = VisionLayout::huggingface;
  return out;
}

// The sizes behind a name such as "vit_base_patch16_224".
TUTTI_INLINE VisionTransformerOptions vit_of_architecture(const PretrainedConfig& config) {
  struct Size {
    std::string_view name;
    std::int64_t width, depth, heads;
  };
  constexpr std::array<Size, 5> sizes{{{"tiny", 192, 12, 3},
                                       {"small", 384, 12, 6},
                                       {"base", 768, 12, 12},
                                       {"large", 1024, 24, 16},
                                       {"huge", 1280, 32, 16}}};
  std::vector<std::string> parts{""};
  for (const char c : timm_architecture(config)) {
    if (c == '_') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const auto number = [](std::string_view text) {
    std::int64_t out = 0;
    for (const char c : text) {
      out = c >= '0' && c <= '9' && out >= 0 && out < 100'000 ? out * 10 + (c - '0') : -1;
    }
    return text.empty() ? -1 : out;
  };
  if (parts.size() == 4 && (parts[0] == "vit" || parts[0] == "deit") &&
      parts[2].starts_with("patch")) {
    for (const Size& size : sizes) {
      VisionTransformerOptions out;
      out.patch_size = number(std::string_view(parts[2]).substr(5));
      out.image_size = number(parts[3]);
      if (size.name == parts[1] && out.patch_size > 0 && out.image_size > 0) {
        out.hidden_dim = size.width;
        out.num_layers = size.depth;
        out.num_heads = size.heads;
        return out;
      }
    }
  }
  config.refuse("architecture",
                "vit_SIZE_patchN_PIXELS or deit_SIZE_patchN_PIXELS with a SIZE of tiny, small, "
                "base, large or huge; " +
                    std::string(other_networks));
}

// Arguments of timm's VisionTransformer that make another computation.
TUTTI_INLINE void refuse_vit_arguments(const PretrainedConfig& args) {
  only_known(args, {"img_size",    "patch_size",      "in_chans",      "num_classes",
                    "global_pool", "embed_dim",       "depth",         "num_heads",
                    "mlp_ratio",   "qkv_bias",        "init_values",   "class_token",
                    "fc_norm",     "drop_rate",       "pos_drop_rate", "proj_drop_rate",
                    "weight_init", "attn_drop_rate",  "fix_init",      "reg_tokens",
                    "proj_bias",   "patch_drop_rate", "final_norm",    "drop_path_rate",
                    "pos_embed",   "act_layer"});
  args.only("reg_tokens", {0}, "register tokens (reg_token) are not supported");
  args.only("proj_bias", {true});
  args.only("final_norm", {true});
  args.only("patch_drop_rate", {0});
  args.only("drop_path_rate", {0}, "train with StochasticDepth instead");
  args.only("pos_embed", {"learn"});
  args.only("act_layer", {"gelu"});
}

TUTTI_INLINE VisionTransformerOptions vit_from_timm(const PretrainedConfig& config) {
  const PretrainedConfig args = config.section("model_args");
  refuse_vit_arguments(args);
  VisionTransformerOptions out = vit_of_architecture(config);
  const PretrainedConfig pretrained = config.section("pretrained_cfg");
  const auto input = pretrained.integers("input_size");
  if (input.size() == 3) {
    if (input[1] != input[2] && !args.has("img_size")) {
      pretrained.refuse("input_size", "the size of square images");
    }
    out.image_size = input[1];
  }
  out.image_size = square_side(args, "img_size", out.image_size);
  out.patch_size = square_side(args, "patch_size", out.patch_size);
  out.num_layers = args.integer("depth", out.num_layers);
  out.num_heads = args.integer("num_heads", out.num_heads);
  out.hidden_dim = args.integer_in("embed_dim", out.hidden_dim, 1, 10'000'000);
  out.mlp_dim = static_cast<std::int64_t>(static_cast<double>(out.hidden_dim) *
                                          args.number_in("mlp_ratio", 4, 0, 1000));
  out.dropout = args.number_in("proj_drop_rate", 0, 0, 1);
  out.position_dropout = args.number_in("pos_drop_rate", 0, 0, 1);
  out.attention_dropout = args.number_in("attn_drop_rate", 0, 0, 1);
  out.head_dropout = args.number_in("drop_rate", 0, 0, 1);
  const TimmCounts counts = timm_counts(config);
  out.num_classes = counts.num_classes;
  out.in_channels = counts.in_channels;
  out.qkv_bias = args.flag("qkv_bias", true);
  out.init_values = args.number("init_values", 0);
  const PretrainedConfig& says = args.has("global_pool")         ? args
                                 : pretrained.has("global_pool") ? pretrained
                                                                 : config;
  says.only("global_pool", {"token", "avg"});
  out.global_pool = says.text("global_pool", "token") == "avg" ? VitPool::avg : VitPool::token;
  if (args.has("fc_norm")) {
    out.fc_norm = args.flag("fc_norm", false);
  }
  out.class_token = args.flag("class_token", true);
  out.layout = vision_layout_of(config);
  return out;
}

TUTTI_INLINE VisionTransformerOptions vit_from_torchvision(const PretrainedConfig& config) {
  struct Builder {
    std::string_view name;
    std::int64_t patch, width, depth, heads, mlp;
  };
  constexpr std::array<Builder, 5> builders{{{"vit_b_16", 16, 768, 12, 12, 3072},
                                             {"vit_b_32", 32, 768, 12, 12, 3072},
                                             {"vit_l_16", 16, 1024, 24, 16, 4096},
                                             {"vit_l_32", 32, 1024, 24, 16, 4096},
                                             {"vit_h_14", 14, 1280, 32, 16, 5120}}};
  only_known(config, {"class", "function", "image_size", "patch_size", "num_layers", "num_heads",
                      "hidden_dim", "mlp_dim", "dropout", "attention_dropout", "num_classes",
                      "representation_size", "dtype"});
  config.only("class", {"torchvision.models.VisionTransformer"});
  VisionTransformerOptions out;
  if (const std::string name = config.text("function", ""); !name.empty()) {
    bool known = false;
    for (const Builder& builder : builders) {
      if (name == "torchvision.models." + std::string(builder.name)) {
        known = true;
        out.patch_size = builder.patch;
        out.hidden_dim = builder.width;
        out.num_layers = builder.depth;
        out.num_heads = builder.heads;
        out.mlp_dim = builder.mlp;
      }
    }
    if (!known) {
      config.refuse("function", "torchvision.models.vit_{b_16, b_32, l_16, l_32, h_14}");
    }
  }
  out.image_size = config.integer("image_size", out.image_size);
  out.patch_size = config.integer("patch_size", out.patch_size);
  out.num_layers = config.integer("num_layers", out.num_layers);
  out.num_heads = config.integer("num_heads", out.num_heads);
  out.hidden_dim = config.integer("hidden_dim", out.hidden_dim);
  out.mlp_dim = config.integer("mlp_dim", out.mlp_dim);
  out.dropout = config.number_in("dropout", 0, 0, 1);
  out.attention_dropout = config.number_in("attention_dropout", 0, 0, 1);
  out.num_classes = config.integer("num_classes", 1000);
  out.representation_size = config.integer("representation_size", 0);
  return out;
}

// What config() writes, over what is there already.
TUTTI_INLINE void write_huggingface(const VisionTransformerOptions& o, PretrainedConfig& out) {
  using Json = tutti::detail::Json;
  out.set("architectures", Json::Array{"ViTForImageClassification"});
  out.set("model_type", "vit");
  for (const auto& [name, value] : {std::pair<const char*, Json>{"hidden_size", o.hidden_dim},
                                    {"num_hidden_layers", o.num_layers},
                                    {"num_attention_heads", o.num_heads},
                                    {"intermediate_size", o.mlp_dim},
                                    {"hidden_dropout_prob", o.dropout},
                                    {"attention_probs_dropout_prob", o.attention_dropout},
                                    {"layer_norm_eps", o.layer_norm_eps},
                                    {"image_size", o.image_size},
                                    {"patch_size", o.patch_size},
                                    {"num_channels", o.in_channels},
                                    {"qkv_bias", o.qkv_bias}}) {
    out.set(name, value);
  }
  set_activation(out, o.hidden_act, "gelu");
  out.set_default("initializer_range", 0.02);
  out.set_default("encoder_stride", o.patch_size);
  set_labels(out, o.num_classes);
}

// What timm multiplies the width by, and rounds down.
TUTTI_INLINE double mlp_ratio(const VisionTransformerOptions& o) {
  const auto width = static_cast<double>(o.hidden_dim);
  const double ratio = static_cast<double>(o.mlp_dim) / width;
  return static_cast<std::int64_t>(width * ratio) == o.mlp_dim ? ratio
                                                               : std::nextafter(ratio, 2 * ratio);
}

// Sets those of timm's arguments by which `says`, which the config says already, differs; `named`
// is what the architecture's name alone says.
TUTTI_INLINE void set_timm_arguments(const VisionTransformerOptions& named,
                                     const VisionTransformerOptions& says,
                                     const VisionTransformerOptions& o, PretrainedConfig& args) {
  using Json = tutti::detail::Json;
  const auto differs = [&](const char* name, const auto& there, const auto& here, Json value) {
    if (there != here) {
      args.set(name, std::move(value));
    }
  };
  if (args.has("img_size") || named.image_size != o.image_size) {
    args.set("img_size", o.image_size);
  }
  differs("patch_size", says.patch_size, o.patch_size, o.patch_size);
  differs("depth", says.num_layers, o.num_layers, o.num_layers);
  differs("num_heads", says.num_heads, o.num_heads, o.num_heads);
  differs("embed_dim", says.hidden_dim, o.hidden_dim, o.hidden_dim);
  if (says.mlp_dim != o.mlp_dim || says.hidden_dim != o.hidden_dim) {
    args.set("mlp_ratio", mlp_ratio(o));
  }
  differs("proj_drop_rate", says.dropout, o.dropout, o.dropout);
  const double positions = o.position_dropout.value_or(o.dropout);
  differs("pos_drop_rate", *says.position_dropout, positions, positions);
  differs("attn_drop_rate", says.attention_dropout, o.attention_dropout, o.attention_dropout);
  differs("drop_rate", says.head_dropout, o.head_dropout, o.head_dropout);
  differs("num_classes", says.num_classes, o.num_classes, o.num_classes);
  differs("in_chans", says.in_channels, o.in_channels, o.in_channels);
  differs("qkv_bias", says.qkv_bias, o.qkv_bias, o.qkv_bias);
  differs("init_values", says.init_values, o.init_values, o.init_values);
  differs("class_token", says.class_token, o.class_token, o.class_token);
}

TUTTI_INLINE void write_timm(const VisionTransformerOptions& o, PretrainedConfig& out) {
  out.set_default("architecture", "vit_base_patch16_224");
  out.set("num_classes", o.num_classes);
  out.set("num_features", o.hidden_dim);
  out.set("global_pool", o.global_pool == VitPool::avg ? "avg" : "token");
  out.set_default("pretrained_cfg", timm_pretrained_cfg(o.in_channels, o.image_size, o.num_classes,
                                                        "patch_embed.proj", "head"));
  PretrainedConfig args = out.section("model_args");
  set_timm_arguments(vit_of_architecture(out), vit_from_timm(out), o, args);
  // timm builds the model from model_args alone.
  if (o.global_pool == VitPool::avg || args.has("global_pool")) {
    args.set("global_pool", o.global_pool == VitPool::avg ? "avg" : "token");
  }
  const bool by_pool = o.global_pool == VitPool::avg;
  if (o.fc_norm.value_or(by_pool) != by_pool || args.has("fc_norm")) {
    args.set("fc_norm", o.fc_norm.value_or(by_pool));
  }
  if (!args.values().empty()) {
    out.set("model_args", args.values());
  }
  set_timm_input(out, o.in_channels, o.image_size);
}

TUTTI_INLINE void write_torchvision(const VisionTransformerOptions& o, PretrainedConfig& out) {
  using Json = tutti::detail::Json;
  out.erase("function");
  out.set("class", "torchvision.models.VisionTransformer");
  for (const auto& [name, value] : {std::pair<const char*, Json>{"image_size", o.image_size},
                                    {"patch_size", o.patch_size},
                                    {"num_layers", o.num_layers},
                                    {"num_heads", o.num_heads},
                                    {"hidden_dim", o.hidden_dim},
                                    {"mlp_dim", o.mlp_dim},
                                    {"dropout", o.dropout},
                                    {"attention_dropout", o.attention_dropout},
                                    {"num_classes", o.num_classes}}) {
    out.set(name, value);
  }
  out.erase("representation_size");
  if (o.representation_size != 0) {
    out.set("representation_size", o.representation_size);
  }
}

TUTTI_INLINE void add_torchvision(const VisionTransformerImpl& net, WeightLayout& layout) {
  layout.add_module("", net);
  layout.renamed_ends = {{"mlp.linear_1.weight", "mlp.0.weight"},
                         {"mlp.linear_1.bias", "mlp.0.bias"},
                         {"mlp.linear_2.weight", "mlp.3.weight"},
                         {"mlp.linear_2.bias", "mlp.3.bias"}};
  layout.may_be_missing = {"heads."};
}

TUTTI_INLINE void expect_no_pre_logits(const VisionTransformerImpl& net, std::string_view library) {
  TUTTI_CHECK_VALUE(net.options().representation_size == 0,
                    "VisionTransformer: representation_size is ", net.options().representation_size,
                    ", for which files of ", library, " have no names; expected 0");
}

TUTTI_INLINE void add_timm(const VisionTransformerImpl& net, WeightLayout& layout,
                           const std::string& prefix) {
  expect_no_pre_logits(net, "timm");
  layout.add(prefix + "cls_token", net.class_token);
  layout.add(prefix + "pos_embed", net.encoder->pos_embedding);
  layout.add_module(prefix + "patch_embed.proj.", *net.conv_proj);
  for (std::size_t i = 0; i < net.encoder->layers->size(); ++i) {
    const auto& block = net.encoder->layers->at<VitBlockImpl>(i);
    const std::string name = prefix + "blocks." + std::to_string(i) + ".";
    layout.add_module(name + "norm1.", *block.ln_1);
    layout.add(name + "attn.qkv.weight", block.self_attention->in_proj_weight);
    layout.add(name + "attn.qkv.bias", block.self_attention->in_proj_bias);
    layout.add_module(name + "attn.proj.", *block.self_attention->out_proj);
    if (block.ls1) {
      layout.add_module(name + "ls1.", *block.ls1);
    }
    layout.add_module(name + "norm2.", *block.ln_2);
    layout.add_module(name + "mlp.fc1.", child_of(*block.mlp, "0"));
    layout.add_module(name + "mlp.fc2.", child_of(*block.mlp, "3"));
    if (block.ls2) {
      layout.add_module(name + "ls2.", *block.ls2);
    }
  }
  if (net.encoder->ln) {
    layout.add_module(prefix + "norm.", *net.encoder->ln);
  } else {
    layout.add_module(prefix + "fc_norm.", *net.fc_norm);
  }
  layout.add_module(prefix + "head.", child_of(*net.heads, "head"));
  layout.base_prefix = prefix;
  layout.may_be_missing = {prefix + "head."};
  for (const char* name : {"reg_token", "*.q_norm.*", "*.k_norm.*", "norm_pre.*", "dist_token"}) {
    layout.refused.emplace_back(name[0] == '*' ? name : prefix + name,
                                "it belongs to a variant of the vision transformer that is not "
                                "supported");
  }
}

TUTTI_INLINE void add_huggingface(const VisionTransformerImpl& net, WeightLayout& layout) {
  expect_no_pre_logits(net, "Transformers");
  TUTTI_CHECK_VALUE(
      net.options().init_values == 0 && net.class_token.defined() && net.encoder->ln,
      "VisionTransformer: LayerScale (init_values), fc_norm and a model without class_token have "
      "no names in files of Transformers; use VisionLayout::timm");
  layout.add("vit.embeddings.cls_token", net.class_token);
  layout.add("vit.embeddings.position_embeddings", net.encoder->pos_embedding);
  layout.add_module("vit.embeddings.patch_embeddings.projection.", *net.conv_proj);
  for (std::size_t i = 0; i < net.encoder->layers->size(); ++i) {
    const auto& block = net.encoder->layers->at<VitBlockImpl>(i);
    const std::string name = "vit.encoder.layer." + std::to_string(i) + ".";
    const std::int64_t width = block.self_attention->in_proj_weight.size(1);
    std::int64_t row = 0;
    for (const char* part : {"query", "key", "value"}) {
      const std::string projection = name + "attention.attention." + part;
      layout.add(projection + ".weight",
                 block.self_attention->in_proj_weight.narrow(0, row, width));
      if (block.self_attention->in_proj_bias.defined()) {
        layout.add(projection + ".bias", block.self_attention->in_proj_bias.narrow(0, row, width));
      }
      row += width;
    }
    layout.add_module(name + "attention.output.dense.", *block.self_attention->out_proj);
    layout.add_module(name + "intermediate.dense.", child_of(*block.mlp, "0"));
    layout.add_module(name + "output.dense.", child_of(*block.mlp, "3"));
    layout.add_module(name + "layernorm_before.", *block.ln_1);
    layout.add_module(name + "layernorm_after.", *block.ln_2);
  }
  layout.add_module("vit.layernorm.", *net.encoder->ln);
  layout.add_module("classifier.", child_of(*net.heads, "head"));
  layout.base_prefix = "vit.";
  layout.heads = {"classifier."};
  layout.may_be_missing = {"classifier."};
  layout.left_out = {"vit.pooler.*", "vit.embeddings.mask_token", "decoder.*"};
}

}  // namespace detail

TUTTI_INLINE LayerScaleImpl::~LayerScaleImpl() = default;

TUTTI_INLINE LayerScaleImpl::LayerScaleImpl(std::int64_t width, double init_values)
    : width_(width), init_values_(init_values) {
  reset();
}

TUTTI_INLINE void LayerScaleImpl::reset() {
  gamma = register_parameter("gamma", at::full({width_}, init_values_));
}

TUTTI_INLINE VisionTransformerOptions
VisionTransformerImpl::options_from(const PretrainedConfig& config) {
  detail::expect_family(config, VisionFamily::vision_transformer);
  const VisionLayout layout = vision_layout_of(config);
  const VisionTransformerOptions out =
      layout == VisionLayout::huggingface   ? detail::vit_from_huggingface(config)
      : layout == VisionLayout::torchvision ? detail::vit_from_torchvision(config)
                                            : detail::vit_from_timm(config);
  detail::check_sizes(config, {{"image_size", out.image_size, 100'000},
                               {"patch_size", out.patch_size, 100'000},
                               {"num_layers", out.num_layers, 10'000},
                               {"num_heads", out.num_heads, 10'000},
                               {"hidden_dim", out.hidden_dim},
                               {"mlp_dim", out.mlp_dim},
                               {"num_classes", out.num_classes},
                               {"in_channels", out.in_channels, 100'000}});
  return out;
}

TUTTI_INLINE WeightLayout VisionTransformerImpl::weight_layout(VisionLayout layout) const {
  WeightLayout out{.model = layout == VisionLayout::huggingface ? "ViTForImageClassification"
                                                                : "VisionTransformer"};
  switch (layout) {
    case VisionLayout::torchvision:
      detail::add_torchvision(*this, out);
      break;
    case VisionLayout::huggingface:
      detail::add_huggingface(*this, out);
      break;
    default:
      detail::add_timm(*this, out, layout == VisionLayout::timm ? "" : "timm_model.");
  }
  detail::adapt_first_conv(conv_proj->weight, out);
  const std::int64_t side = options_.image_size / options_.patch_size;
  const std::int64_t prefix = options_.class_token ? 1 : 0;
  for (DiskTensor& tensor : out.tensors) {
    if (tensor.tensor.is_alias_of(encoder->pos_embedding)) {
      tensor.adapt = [=](const at::Tensor& from_file) {
        return detail::resample_positions(from_file, prefix, side, layout);
      };
    }
  }
  return out;
}

TUTTI_INLINE PretrainedConfig VisionTransformerImpl::config() const {
  const PretrainedConfig out = detail::vision_config<VisionTransformerOptions>(
      options_, source_config,
      {detail::write_huggingface, detail::write_torchvision, detail::write_timm});
  detail::expect_expressed("VisionTransformer", options_.layout, detail::named_options(options_),
                           detail::named_options(options_from(out)));
  return out;
}

}  // namespace tutti::models

#endif
