// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/models/detail/onnx_writer.hpp>

// Operators of layers, as export_onnx() writes them.

#if TUTTI_BODIES

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>

#include <tutti/models/detail/onnx_operators.hpp>
#include <tutti/models/detail/onnx_shapes.hpp>

namespace tutti::models::detail {

TUTTI_INLINE std::string onnx_bias(OnnxCall& c) {
  return c.given("bias") ? c.tensor("bias") : "";
}

// `count` times a number.
TUTTI_INLINE std::string onnx_filled(OnnxCall& c, std::int64_t count, double value,
                                     at::ScalarType type) {
  return c.to.constant(at::full({count}, value, at::TensorOptions().dtype(type)));
}

TUTTI_INLINE bool onnx_linear(OnnxCall& c) {
  const std::string x = c.tensor("input");
  const std::string w = c.tensor("weight");
  if (c.sample("input").dim() == 2) {
    std::vector<std::string> inputs{x, w};
    if (c.given("bias")) {
      inputs.push_back(c.tensor("bias"));
    }
    return c.set(c.to.node("Gemm", std::move(inputs), {{"transB", std::int64_t{1}}}));
  }
  const std::string y =
      c.to.node("MatMul", {x, onnx_transposed(c.to, w, c.sample("weight").dim())});
  return c.set(c.given("bias") ? c.to.node("Add", {y, c.tensor("bias")}) : y);
}

template <OnnxName Second>
bool onnx_matmul(OnnxCall& c) {
  return c.set(c.to.node("MatMul", {c.tensor("self"), c.tensor(Second.text)}));
}

// A linear layer of LibTorch transposes its weight first, which Gemm does by itself.
TUTTI_INLINE bool onnx_addmm(OnnxCall& c) {
  const std::string weight = c.tensor("mat2");
  const std::string stored = c.to.transposed_from(weight);
  const std::int64_t transposed = stored.empty() ? 0 : 1;
  return c.set(c.to.node(
      "Gemm", {c.tensor("mat1"), stored.empty() ? weight : stored, c.tensor("self")},
      {{"alpha", c.real("alpha", 1)}, {"beta", c.real("beta", 1)}, {"transB", transposed}}));
}

TUTTI_INLINE bool onnx_baddbmm(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string product = c.to.node("MatMul", {c.tensor("batch1"), c.tensor("batch2")});
  return c.set(
      g.f("Add", g.f("Mul", g.x(), c.real("beta", 1)), g.f("Mul", product, c.real("alpha", 1))));
}

// A number for each of `rank` dimensions.
TUTTI_INLINE std::vector<std::int64_t> onnx_each(std::vector<std::int64_t> numbers,
                                                 std::size_t rank) {
  if (numbers.size() == 1) {
    numbers.assign(rank, numbers[0]);
  }
  return numbers;
}

// The same at both ends: all beginnings, then all ends.
TUTTI_INLINE std::vector<std::int64_t> onnx_both_ends(std::vector<std::int64_t> pads) {
  const std::vector<std::int64_t> once = pads;
  pads.insert(pads.end(), once.begin(), once.end());
  return pads;
}

// That of a batch, with numbers for the padding; others are made of such.
TUTTI_INLINE bool onnx_convolution(OnnxCall& c) {
  const std::int64_t rank = c.sample("weight").dim();
  if (c.sample("input").dim() != rank || c.is_text("padding")) {
    return false;
  }
  const bool transposed =
      c.operation().find("transpose") != std::string::npos || c.flag("transposed");
  const auto spatial = static_cast<std::size_t>(rank - 2);
  const auto each = [&](std::string_view name) { return onnx_each(c.integers(name), spatial); };
  OnnxAttributes attributes{{"strides", each("stride")},
                            {"pads", onnx_both_ends(each("padding"))},
                            {"dilations", each("dilation")},
                            {"group", c.integer("groups", 1)}};
  if (transposed) {
    attributes.emplace_back("output_padding", each("output_padding"));
  } else if (c.given("output_padding")) {
    static_cast<void>(c.integers("output_padding"));
  }
  std::vector<std::string> inputs{c.tensor("input"), c.tensor("weight")};
  if (c.given("bias")) {
    inputs.push_back(c.tensor("bias"));
  }
  return c.set(
      c.to.node(transposed ? "ConvTranspose" : "Conv", std::move(inputs), std::move(attributes)));
}

TUTTI_INLINE bool onnx_batch_norm(OnnxCall& c) {
  if (c.flag("training") || !c.given("running_mean")) {
    return c.refuse(
        "with the statistics of the batch, which export_onnx() does not write; set "
        "track_running_stats");
  }
  const std::int64_t channels = c.sample("running_mean").size(0);
  const at::ScalarType type = c.sample("running_mean").scalar_type();
  const auto row = [&](std::string_view name, double otherwise) {
    return c.given(name) ? c.tensor(name) : onnx_filled(c, channels, otherwise, type);
  };
  return c.set(c.to.node("BatchNormalization",
                         {c.tensor("input"), row("weight", 1), row("bias", 0),
                          c.tensor("running_mean"), c.tensor("running_var")},
                         {{"epsilon", c.real("eps")}}));
}

TUTTI_INLINE bool onnx_instance_norm(OnnxCall& c) {
  if (!c.flag("use_input_stats")) {
    return onnx_batch_norm(c);
  }
  const at::Tensor& x = c.sample("input");
  const auto row = [&](std::string_view name, double otherwise) {
    return c.given(name) ? c.tensor(name) : onnx_filled(c, x.size(1), otherwise, x.scalar_type());
  };
  return c.set(c.to.node("InstanceNormalization",
                         {c.tensor("input"), row("weight", 1), row("bias", 0)},
                         {{"epsilon", c.real("eps")}}));
}

TUTTI_INLINE bool onnx_layer_norm(OnnxCall& c) {
  const std::vector<std::int64_t> shape = c.integers("normalized_shape");
  const at::ScalarType type = c.sample("input").scalar_type();
  std::vector<std::string> inputs{c.operand("input", type)};
  inputs.push_back(c.given("weight")
                       ? c.operand("weight", type)
                       : c.to.constant(at::ones(shape, at::TensorOptions().dtype(type))));
  if (c.given("bias")) {
    inputs.push_back(c.operand("bias", type));
  }
  return c.set(
      c.to.node("LayerNormalization", std::move(inputs),
                {{"axis", -static_cast<std::int64_t>(shape.size())}, {"epsilon", c.real("eps")}}));
}

// A weight or bias of channels, for [N, C, ...].
TUTTI_INLINE std::string onnx_of_channels(OnnxCall& c, std::string_view name, at::ScalarType type) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(c.sample("input").dim() - 1), 1);
  shape[0] = -1;
  return c.to.node("Reshape", {c.operand(name, type), c.to.integers(shape)});
}

// Groups as channels of instances, then weight and bias.
TUTTI_INLINE bool onnx_group_norm(OnnxCall& c) {
  const std::int64_t groups = c.integer("num_groups");
  const at::ScalarType type = c.sample("input").scalar_type();
  const std::string grouped =
      c.to.node("Reshape", {c.tensor("input"), c.to.integers({0, groups, -1})});
  std::string y =
      c.to.node("InstanceNormalization",
                {grouped, onnx_filled(c, groups, 1, type), onnx_filled(c, groups, 0, type)},
                {{"epsilon", c.real("eps")}});
  std::vector<Numbers> sizes = c.sizes("input");
  y = onnx_reshaped(c.to, y, {sizes[0]}, sizes);
  y = c.given("weight") ? c.to.node("Mul", {y, onnx_of_channels(c, "weight", type)}) : y;
  y = c.given("bias") ? c.to.node("Add", {y, onnx_of_channels(c, "bias", type)}) : y;
  return c.set(y);
}

// In float32, as LibTorch computes it for smaller types.
TUTTI_INLINE bool onnx_rms_norm(OnnxCall& c) {
  const at::ScalarType type = c.sample("input").scalar_type();
  const bool small = type == at::kHalf || type == at::kBFloat16;
  OnnxFormula g{c, small ? at::kFloat : type};
  std::vector<std::int64_t> axes;
  const auto count = static_cast<std::int64_t>(c.integers("normalized_shape").size());
  for (std::int64_t axis = -count; axis < 0; ++axis) {
    axes.push_back(axis);
  }
  constexpr auto least_float = static_cast<double>(std::numeric_limits<float>::epsilon());
  const double least = type == at::kDouble ? std::numeric_limits<double>::epsilon() : least_float;
  const std::string x = g.x("input");
  const std::string mean = c.to.node("ReduceMean", {g.f("Mul", x, x), c.to.integers(axes)});
  const std::string root = g.f("Sqrt", g.f("Add", mean, c.real("eps", least)));
  std::string y = g.f("Div", x, root);
  y = c.given("weight") ? g.f("Mul", y, g.x("weight")) : y;
  return c.set(c.to.cast(y, g.type, c.result().scalar_type()));
}

TUTTI_INLINE bool onnx_embedding(OnnxCall& c) {
  static_cast<void>(c.flag("scale_grad_by_freq"));  // of gradients, as padding_idx and sparse are
  return c.set(c.to.node("Gather", {c.tensor("weight"), c.tensor("indices")}));
}

// Whether a pooled size is that of windows which all lie within the padded input.
TUTTI_INLINE bool onnx_whole_windows(OnnxCall& c, const OnnxAttributes& attributes) {
  const auto list = [&](std::size_t i) {
    return std::get<std::vector<std::int64_t>>(attributes[i].second);
  };
  const std::vector<Numbers> in = c.sizes("self");
  const std::vector<Numbers> out = c.result_sizes();
  const std::size_t spatial = list(0).size();
  for (std::size_t i = 0; i < spatial; ++i) {
    for (std::size_t t = 0; t < in[0].size(); ++t) {
      const std::int64_t span = list(3)[i] * (list(0)[i] - 1) + 1;
      const std::int64_t room = in[i + 2][t] + 2 * list(2)[i] - span;
      if (out[i + 2][t] != room / list(1)[i] + 1) {
        return false;
      }
    }
  }
  return true;
}

template <OnnxName Op>
bool onnx_pool(OnnxCall& c) {
  const bool average = std::string_view(Op.text) == "AveragePool";
  const auto spatial = static_cast<std::size_t>(
      c.operation().back() == 'd' ? c.operation()[c.operation().size() - 2] - '0' : 2);
  if (c.sample("self").dim() != static_cast<std::int64_t>(spatial) + 2) {
    return c.refuse("without a batch, which export_onnx() does not write");
  }
  const auto each = [&](std::string_view name) { return onnx_each(c.integers(name), spatial); };
  const std::vector<std::int64_t> kernel = each("kernel_size");
  const std::vector<std::int64_t> stride = each("stride");
  const std::vector<std::int64_t> dilation =
      average ? std::vector<std::int64_t>(spatial, 1) : each("dilation");
  OnnxAttributes attributes{{"kernel_shape", kernel},
                            {"strides", stride.empty() ? kernel : stride},
                            {"pads", each("padding")},
                            {"dilations", dilation}};
  const bool whole = !c.flag("ceil_mode") || onnx_whole_windows(c, attributes);
  attributes[2].second = onnx_both_ends(each("padding"));
  if (average && (!whole || c.given("divisor_override"))) {
    return c.refuse(
        "with windows that are cut off, or with a divisor, which export_onnx() does "
        "not write");
  }
  if (average) {
    attributes.pop_back();
    const std::int64_t counts = c.flag("count_include_pad", true) ? 1 : 0;
    attributes.emplace_back("count_include_pad", counts);
  }
  attributes.emplace_back("ceil_mode", std::int64_t{whole ? 0 : 1});
  return c.set(c.to.node(Op.text, {c.tensor("self")}, std::move(attributes)));
}

// To one number for each channel, or by windows of one size that cover the input.
template <OnnxName Global, OnnxName Windows>
bool onnx_adaptive_pool(OnnxCall& c) {
  const std::vector<Numbers> in = c.sizes("self");
  const std::vector<Numbers> out = c.result_sizes();
  const std::size_t spatial = c.integers("output_size").size();
  if (in.size() != spatial + 2) {
    return c.refuse("without a batch, which export_onnx() does not write");
  }
  std::vector<std::int64_t> kernel;
  bool to_one = true;
  for (std::size_t i = 2; i < in.size(); ++i) {
    to_one = to_one && all_equal(out[i]) && out[i][0] == 1;
    const bool divides = all_equal(in[i]) && all_equal(out[i]) && in[i][0] % out[i][0] == 0;
    kernel.push_back(divides ? in[i][0] / out[i][0] : 0);
  }
  if (to_one) {
    return c.set(c.to.node(Global.text, {c.tensor("self")}));
  }
  if (std::find(kernel.begin(), kernel.end(), 0) != kernel.end()) {
    return c.refuse(
        "to a size that does not divide the input's, which export_onnx() does not "
        "write");
  }
  return c.set(
      c.to.node(Windows.text, {c.tensor("self")}, {{"kernel_shape", kernel}, {"strides", kernel}}));
}

// LibTorch's sort copies the values and then sorts them by no operator that a trace sees.
TUTTI_INLINE bool onnx_sort(OnnxCall& c) {
  return c.refuse("which export_onnx() does not write");
}

// By the factors where they were given, else by the sizes.
TUTTI_INLINE bool onnx_resize(OnnxCall& c) {
  const std::string op = c.operation();
  const bool nearest = op.find("nearest") != std::string::npos;
  const bool cubic = op.find("cubic") != std::string::npos;
  if (op.find("exact") != std::string::npos) {
    return c.refuse("which export_onnx() does not write");
  }
  const bool corners = c.flag("align_corners");
  const std::string_view input = c.given("self") ? "self" : "input";
  OnnxAttributes attributes{{"coordinate_transformation_mode", nearest   ? "asymmetric"
                                                               : corners ? "align_corners"
                                                                         : "half_pixel"},
                            {"mode", nearest ? "nearest"
                                     : cubic ? "cubic"
                                             : "linear"}};
  if (nearest) {
    attributes.emplace_back("nearest_mode", "floor");
  }
  if (cubic) {
    attributes.emplace_back("cubic_coeff_a", -0.75);
  }
  std::vector<std::string> inputs{c.tensor(input), "", "", ""};
  std::vector<double> factors = c.reals("scale_factors");
  for (const std::string_view one : {"scales", "scales_d", "scales_h", "scales_w"}) {
    if (c.given(one)) {
      factors.push_back(c.real(one));
    }
  }
  if (factors.size() + 2 == c.result_sizes().size()) {
    factors.insert(factors.begin(), 2, 1.0);
    inputs.pop_back();
    inputs[2] = c.to.constant(at::tensor(factors, at::kFloat));
  } else {
    inputs[3] = c.to.sizes(c.result_sizes());
  }
  c.sizes_say_it();
  return c.set(c.to.node("Resize", std::move(inputs), std::move(attributes)));
}

// Keys or values with each head as often as it serves heads of queries.
TUTTI_INLINE std::string onnx_heads(OnnxCall& c, std::string_view name) {
  const std::string x = c.tensor(name);
  const std::vector<Numbers> q = c.sizes("query");
  std::vector<Numbers> sizes = c.sizes(name);
  if (!c.flag("enable_gqa") || q[1] == sizes[1]) {
    return x;
  }
  const std::string apart = c.to.node("Unsqueeze", {x, c.to.integers({2})});
  std::vector<Numbers> repeated = sizes;
  repeated.insert(repeated.begin() + 2, Numbers(q[1].size(), q[1][0] / sizes[1][0]));
  sizes[1] = q[1];
  const std::string expanded = c.to.node("Expand", {apart, c.to.sizes(repeated)});
  return onnx_reshaped(c.to, expanded, {sizes[0]}, sizes);
}

// What is added to the scores; empty: nothing.
TUTTI_INLINE std::string onnx_attention_mask(OnnxCall& c, OnnxFormula& g) {
  const std::string never = g.number(-std::numeric_limits<double>::infinity());
  if (c.flag("is_causal")) {
    const std::vector<Numbers> q = c.sizes("query");
    const std::vector<Numbers> k = c.sizes("key");
    const std::string full =
        c.to.node("Expand", {never, c.to.sizes({q[q.size() - 2], k[k.size() - 2]})});
    const std::string one = c.to.constant(at::scalar_tensor(1, at::kLong));
    return c.to.node("Trilu", {full, one}, {{"upper", std::int64_t{1}}});
  }
  if (!c.given("attn_mask")) {
    return {};
  }
  return c.sample("attn_mask").scalar_type() == at::kBool
             ? c.to.node("Where", {c.tensor("attn_mask"), g.number(0), never})
             : c.operand("attn_mask", g.type);
}

TUTTI_INLINE bool onnx_attention(OnnxCall& c) {
  if (c.real("dropout_p") != 0) {
    return c.refuse("with dropout, which export_onnx() does not write");
  }
  OnnxFormula g{c};
  const auto width = static_cast<double>(c.sample("query").size(-1));
  const std::string q = g.f("Mul", g.x("query"), c.real("scale", 1 / std::sqrt(width)));
  const std::string k = onnx_transposed(c.to, onnx_heads(c, "key"), c.sample("key").dim());
  std::string scores = g.f("MatMul", q, k);
  const std::string mask = onnx_attention_mask(c, g);
  scores = mask.empty() ? scores : g.f("Add", scores, mask);
  std::string weights = c.to.node("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  if (c.given("attn_mask")) {  // a query that sees nothing gets zeros
    weights = c.to.node("Where", {g.f("IsNaN", weights), g.number(0), weights});
  }
  return c.set(g.f("MatMul", weights, onnx_heads(c, "value")));
}

TUTTI_INLINE OnnxOperators onnx_layers() {
  return {{"linear", onnx_linear},
          {"matmul", onnx_matmul<"other">},
          {"mm", onnx_matmul<"mat2">},
          {"bmm", onnx_matmul<"mat2">},
          {"mv", onnx_matmul<"vec">},
          {"dot", onnx_matmul<"tensor">},
          {"addmm", onnx_addmm},
          {"baddbmm", onnx_baddbmm},
          {"conv1d", onnx_convolution},
          {"conv2d", onnx_convolution},
          {"conv3d", onnx_convolution},
          {"conv_transpose1d", onnx_convolution},
          {"conv_transpose2d", onnx_convolution},
          {"conv_transpose3d", onnx_convolution},
          {"convolution", onnx_convolution},
          {"_convolution", onnx_convolution},
          {"batch_norm", onnx_batch_norm},
          {"native_batch_norm", onnx_batch_norm},
          {"_native_batch_norm_legit_no_training", onnx_batch_norm},
          {"instance_norm", onnx_instance_norm},
          {"layer_norm", onnx_layer_norm},
          {"native_layer_norm", onnx_layer_norm},
          {"group_norm", onnx_group_norm},
          {"rms_norm", onnx_rms_norm},
          {"embedding", onnx_embedding},
          {"max_pool1d", onnx_pool<"MaxPool">},
          {"max_pool2d", onnx_pool<"MaxPool">},
          {"max_pool3d", onnx_pool<"MaxPool">},
          {"max_pool2d_with_indices", onnx_pool<"MaxPool">},
          {"avg_pool1d", onnx_pool<"AveragePool">},
          {"avg_pool2d", onnx_pool<"AveragePool">},
          {"avg_pool3d", onnx_pool<"AveragePool">},
          {"adaptive_avg_pool1d", onnx_adaptive_pool<"GlobalAveragePool", "AveragePool">},
          {"adaptive_avg_pool2d", onnx_adaptive_pool<"GlobalAveragePool", "AveragePool">},
          {"adaptive_avg_pool3d", onnx_adaptive_pool<"GlobalAveragePool", "AveragePool">},
          {"adaptive_max_pool1d", onnx_adaptive_pool<"GlobalMaxPool", "MaxPool">},
          {"adaptive_max_pool2d", onnx_adaptive_pool<"GlobalMaxPool", "MaxPool">},
          {"adaptive_max_pool3d", onnx_adaptive_pool<"GlobalMaxPool", "MaxPool">},
          {"sort", onnx_sort},
          {"upsample_nearest1d", onnx_resize},
          {"upsample_nearest2d", onnx_resize},
          {"upsample_nearest3d", onnx_resize},
          {"upsample_linear1d", onnx_resize},
          {"upsample_bilinear2d", onnx_resize},
          {"upsample_trilinear3d", onnx_resize},
          {"upsample_bicubic2d", onnx_resize},
          {"scaled_dot_product_attention", onnx_attention}};
}

}  // namespace tutti::models::detail

#endif
