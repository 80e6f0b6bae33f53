// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/models/detail/onnx_writer.hpp>

// Operators of ATen that move numbers, as export_onnx() writes them.
namespace tutti::models::detail {

// `x`, of sizes `from`, in other sizes.
std::string onnx_reshaped(OnnxWriter& to, const std::string& x, const std::vector<Numbers>& from,
                          const std::vector<Numbers>& sizes);

// With the last two dimensions exchanged.
std::string onnx_transposed(OnnxWriter& to, const std::string& x, std::int64_t rank);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include <tutti/models/detail/onnx_operators.hpp>

namespace tutti::models::detail {

// Reshape knows a size by two signs: 0, as before in this place, and once -1, what is left.
TUTTI_INLINE std::string onnx_reshaped(OnnxWriter& to, const std::string& x,
                                       const std::vector<Numbers>& from,
                                       const std::vector<Numbers>& sizes) {
  std::vector<std::int64_t> shape;
  int left = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool stays = i < from.size() && from[i] == sizes[i];
    const bool fixed = all_equal(sizes[i]) && sizes[i][0] != 0;
    left += fixed || stays ? 0 : 1;
    shape.push_back(fixed ? sizes[i][0] : stays ? 0 : -1);
  }
  return to.node("Reshape", {x, left > 1 ? to.sizes(sizes) : to.integers(shape)});
}

TUTTI_INLINE std::string onnx_permuted(OnnxWriter& to, const std::string& x,
                                       std::vector<std::int64_t> order) {
  return to.node("Transpose", {x}, {{"perm", std::move(order)}});
}

TUTTI_INLINE std::vector<std::int64_t> onnx_order(std::int64_t rank) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(rank));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TUTTI_INLINE std::string onnx_transposed(OnnxWriter& to, const std::string& x, std::int64_t rank) {
  std::vector<std::int64_t> order = onnx_order(rank);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return onnx_permuted(to, x, std::move(order));
}

TUTTI_INLINE bool onnx_same(OnnxCall& c) {
  const std::string_view argument = c.given("input") ? "input" : "self";
  if (c.given("train") && c.flag("train")) {
    return c.refuse("in training, which export_onnx() does not write");
  }
  static_cast<void>(c.real("p"));
  return c.set(c.tensor(argument));
}

TUTTI_INLINE bool onnx_convert(OnnxCall& c) {
  return c.set(c.operand("self", c.result().scalar_type()));
}

TUTTI_INLINE bool onnx_reshape(OnnxCall& c) {
  if (c.given("dtype")) {
    return c.refuse("with another type, which export_onnx() does not write");
  }
  c.sizes_say_it();
  return c.set(onnx_reshaped(c.to, c.tensor("self"), c.sizes("self"), c.result_sizes()));
}

TUTTI_INLINE bool onnx_expand(OnnxCall& c) {
  c.sizes_say_it();
  return c.set(c.to.node("Expand", {c.tensor("self"), c.to.sizes(c.result_sizes())}));
}

TUTTI_INLINE bool onnx_permute(OnnxCall& c) {
  std::vector<std::int64_t> order = onnx_axes(c, "dims");
  return c.set(onnx_permuted(c.to, c.tensor("self"), std::move(order)));
}

TUTTI_INLINE bool onnx_transpose(OnnxCall& c) {
  std::vector<std::int64_t> order = onnx_order(c.sample("self").dim());
  if (c.operation() != "aten::t") {
    std::swap(order[static_cast<std::size_t>(c.dim("dim0"))],
              order[static_cast<std::size_t>(c.dim("dim1"))]);
  } else if (order.size() == 2) {
    std::swap(order[0], order[1]);
  }
  return c.set(onnx_permuted(c.to, c.tensor("self"), std::move(order)));
}

TUTTI_INLINE bool onnx_unsqueeze(OnnxCall& c) {
  const std::int64_t dim = c.integer("dim");
  const std::int64_t axis = dim < 0 ? dim + c.sample("self").dim() + 1 : dim;
  return c.set(c.to.node("Unsqueeze", {c.tensor("self"), c.to.integers({axis})}));
}

TUTTI_INLINE bool onnx_concatenate(OnnxCall& c) {
  const at::ScalarType type = c.result().scalar_type();
  const bool stacks = c.operation() == "aten::stack";
  std::int64_t dim = c.integer("dim");
  dim += dim < 0 ? c.result().dim() : 0;
  std::vector<std::string> parts;
  for (const int value : c.values("tensors")) {
    const at::Tensor& sample = c.to.traces()[0].tensor(value);
    if (sample.dim() == 1 && sample.numel() == 0 && c.result().dim() != 1) {
      continue;  // torch.cat leaves it out
    }
    const std::string part = c.to.cast(c.to.name(value), sample.scalar_type(), type);
    parts.push_back(stacks ? c.to.node("Unsqueeze", {part, c.to.integers({dim})}) : part);
  }
  return c.set(c.to.node("Concat", std::move(parts), {{"axis", dim}}));
}

TUTTI_INLINE bool onnx_split(OnnxCall& c) {
  c.sizes_say_it();
  const std::int64_t axis = c.dim();
  std::vector<Numbers> sizes;
  for (std::size_t i = 0; i < c.results(); ++i) {
    sizes.push_back(c.result_sizes(i)[static_cast<std::size_t>(axis)]);
  }
  const auto parts =
      c.to.nodes("Split", {c.tensor("self"), c.to.sizes(sizes)}, {{"axis", axis}}, c.results());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    c.set(parts[i], i);
  }
  return true;
}

// A whole number that may follow the sizes, without dimensions.
TUTTI_INLINE std::string onnx_whole(OnnxCall& c, const Numbers& numbers) {
  return all_equal(numbers) ? c.to.constant(at::scalar_tensor(numbers[0], at::kLong))
                            : c.to.node("Squeeze", {c.to.sizes({numbers})});
}

TUTTI_INLINE bool onnx_unbind(OnnxCall& c) {
  const std::int64_t axis = c.dim();
  for (std::size_t i = 0; i < c.results(); ++i) {
    const std::string at = onnx_whole(c, {static_cast<std::int64_t>(i)});
    c.set(c.to.node("Gather", {c.tensor("self"), at}, {{"axis", axis}}), i);
  }
  return true;
}

TUTTI_INLINE bool onnx_select(OnnxCall& c) {
  const std::string at = onnx_whole(c, c.numbers("index"));
  return c.set(c.to.node("Gather", {c.tensor("self"), at}, {{"axis", c.dim()}}));
}

TUTTI_INLINE bool onnx_slice(OnnxCall& c) {
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  const auto bound = [&](std::string_view name, std::int64_t otherwise) {
    return c.given(name) ? c.to.sizes({c.numbers(name)}) : c.to.integers({otherwise});
  };
  const std::string start = bound("start", 0);
  const std::string end = bound("end", last);
  return c.set(c.to.node("Slice", {c.tensor("self"), start, end, c.to.integers({c.dim()}),
                                   c.to.integers({c.integer("step", 1)})}));
}

TUTTI_INLINE bool onnx_index_select(OnnxCall& c) {
  return c.set(c.to.node("Gather", {c.tensor("self"), c.tensor("index")}, {{"axis", c.dim()}}));
}

TUTTI_INLINE bool onnx_gather(OnnxCall& c) {
  static_cast<void>(c.flag("sparse_grad"));
  return c.set(
      c.to.node("GatherElements", {c.tensor("self"), c.tensor("index")}, {{"axis", c.dim()}}));
}

// x.index({..., index, ...}) with one tensor of integers.
TUTTI_INLINE bool onnx_advanced_index(OnnxCall& c) {
  const std::vector<int>& indices = c.values("indices");
  std::int64_t axis = -1;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0) {
      const at::ScalarType type = c.to.traces()[0].tensor(indices[i]).scalar_type();
      if (axis >= 0 || type == at::kBool || type == at::kByte) {
        return c.refuse("with several tensors or with a mask, which export_onnx() does not write");
      }
      axis = static_cast<std::int64_t>(i);
    }
  }
  const int index = indices[static_cast<std::size_t>(axis)];
  return c.set(c.to.node("Gather", {c.tensor("self"), c.to.name(index)}, {{"axis", axis}}));
}

TUTTI_INLINE bool onnx_repeat(OnnxCall& c) {
  const std::string_view argument = c.given("dims") ? "dims" : "repeats";
  const std::vector<std::int64_t> repeats = c.integers(argument);
  std::vector<Numbers> sizes = c.sizes("self");
  std::string x = c.tensor("self");
  if (repeats.size() > sizes.size()) {
    std::vector<std::int64_t> axes(repeats.size() - sizes.size());
    std::iota(axes.begin(), axes.end(), 0);
    x = c.to.node("Unsqueeze", {x, c.to.integers(axes)});
  }
  return c.set(c.to.node("Tile", {x, c.to.integers(repeats)}));
}

TUTTI_INLINE bool onnx_flip(OnnxCall& c) {
  const std::vector<std::int64_t> axes = onnx_axes(c, "dims");
  const auto all = [&](std::int64_t value) {
    return c.to.integers(std::vector<std::int64_t>(axes.size(), value));
  };
  constexpr std::int64_t first = std::numeric_limits<std::int64_t>::min();
  return c.set(
      c.to.node("Slice", {c.tensor("self"), all(-1), all(first), c.to.integers(axes), all(-1)}));
}

// PyTorch gives the last dimension first, and both ends of each; ONNX all beginnings, then all
// ends.
TUTTI_INLINE bool onnx_pad(OnnxCall& c) {
  const bool named = c.operation() == "aten::pad" || c.operation() == "aten::constant_pad_nd";
  const std::vector<std::int64_t> pad = c.integers(named ? "pad" : "padding");
  const std::int64_t rank = c.sample("self").dim();
  std::vector<std::int64_t> pads(static_cast<std::size_t>(2 * rank), 0);
  for (std::size_t i = 0; 2 * i + 1 < pad.size(); ++i) {
    const std::size_t axis = static_cast<std::size_t>(rank) - 1 - i;
    pads[axis] = pad[2 * i];
    pads[static_cast<std::size_t>(rank) + axis] = pad[2 * i + 1];
  }
  std::string mode = c.given("mode") ? c.text("mode") : "constant";
  mode = c.operation().find("reflection") != std::string::npos    ? "reflect"
         : c.operation().find("replication") != std::string::npos ? "replicate"
                                                                  : mode;
  if (mode == "circular") {
    return c.refuse("in circles, which export_onnx() does not write");
  }
  std::vector<std::string> inputs{c.tensor("self"), c.to.integers(pads)};
  if (mode == "constant") {
    inputs.push_back(c.to.number(c.real("value"), c.result().scalar_type()));
  }
  return c.set(
      c.to.node("Pad", std::move(inputs), {{"mode", mode == "replicate" ? "edge" : mode}}));
}

TUTTI_INLINE bool onnx_pixel_shuffle(OnnxCall& c) {
  if (c.sample("self").dim() != 4) {
    return false;
  }
  return c.set(c.to.node("DepthToSpace", {c.tensor("self")},
                         {{"blocksize", c.integer("upscale_factor")}, {"mode", "CRD"}}));
}

// A tensor full of one number, of the result's type and sizes.
TUTTI_INLINE bool onnx_fill(OnnxCall& c) {
  const at::ScalarType type = c.result().scalar_type();
  const std::string op = c.operation();
  const std::string_view argument = c.given("fill_value") ? "fill_value" : "value";
  const bool given = op.find("full") != std::string::npos || op == "aten::fill";
  const double known = op.find("ones") != std::string::npos ? 1 : 0;
  if (!given && c.lasts() && !c.result().eq(known).all().item<bool>()) {
    return c.refuse("and fills what it returns by other means than ATen's operators");
  }
  const std::string value = given ? c.operand(argument, type) : c.to.number(known, type);
  c.sizes_say_it();
  return c.set(c.to.node("Expand", {value, c.to.sizes(c.result_sizes())}));
}

TUTTI_INLINE bool onnx_copy(OnnxCall& c) {
  const std::string value = c.operand("src", c.result().scalar_type());
  return c.set(c.to.node("Expand", {value, c.to.sizes(c.result_sizes())}));
}

TUTTI_INLINE bool onnx_range(OnnxCall& c) {
  const at::ScalarType type = c.result().scalar_type();
  const auto bound = [&](std::string_view name, double otherwise) {
    return c.given(name) ? c.operand(name, type) : c.to.number(otherwise, type);
  };
  return c.set(c.to.node("Range", {bound("start", 0), bound("end", 0), bound("step", 1)}));
}

TUTTI_INLINE bool onnx_triangle(OnnxCall& c) {
  const std::string diagonal = onnx_whole(c, c.numbers("diagonal"));
  const std::int64_t upper = c.operation() == "aten::triu" ? 1 : 0;
  return c.set(c.to.node("Trilu", {c.tensor("self"), diagonal}, {{"upper", upper}}));
}

TUTTI_INLINE OnnxOperators onnx_shapes() {
  return {{"contiguous", onnx_same},
          {"clone", onnx_same},
          {"detach", onnx_same},
          {"alias", onnx_same},
          {"dropout", onnx_same},
          {"feature_dropout", onnx_same},
          {"alpha_dropout", onnx_same},
          {"feature_alpha_dropout", onnx_same},
          {"to", onnx_convert},
          {"_to_copy", onnx_convert},
          {"type_as", onnx_convert},
          {"view", onnx_reshape},
          {"_unsafe_view", onnx_reshape},
          {"view_as", onnx_reshape},
          {"reshape", onnx_reshape},
          {"reshape_as", onnx_reshape},
          {"_reshape_alias", onnx_reshape},
          {"flatten", onnx_reshape},
          {"unflatten", onnx_reshape},
          {"squeeze", onnx_reshape},
          {"unsqueeze", onnx_unsqueeze},
          {"expand", onnx_expand},
          {"expand_as", onnx_expand},
          {"broadcast_to", onnx_expand},
          {"permute", onnx_permute},
          {"transpose", onnx_transpose},
          {"t", onnx_transpose},
          {"cat", onnx_concatenate},
          {"concat", onnx_concatenate},
          {"stack", onnx_concatenate},
          {"chunk", onnx_split},
          {"split", onnx_split},
          {"split_with_sizes", onnx_split},
          {"unbind", onnx_unbind},
          {"select", onnx_select},
          {"slice", onnx_slice},
          {"index_select", onnx_index_select},
          {"index", onnx_advanced_index},
          {"gather", onnx_gather},
          {"repeat", onnx_repeat},
          {"tile", onnx_repeat},
          {"flip", onnx_flip},
          {"pad", onnx_pad},
          {"constant_pad_nd", onnx_pad},
          {"reflection_pad1d", onnx_pad},
          {"reflection_pad2d", onnx_pad},
          {"reflection_pad3d", onnx_pad},
          {"replication_pad1d", onnx_pad},
          {"replication_pad2d", onnx_pad},
          {"replication_pad3d", onnx_pad},
          {"pixel_shuffle", onnx_pixel_shuffle},
          {"zeros", onnx_fill},
          {"ones", onnx_fill},
          {"full", onnx_fill},
          {"zeros_like", onnx_fill},
          {"ones_like", onnx_fill},
          {"full_like", onnx_fill},
          {"new_zeros", onnx_fill},
          {"new_ones", onnx_fill},
          {"new_full", onnx_fill},
          {"fill", onnx_fill},
          {"zero", onnx_fill},
          {"copy", onnx_copy},
          {"arange", onnx_range},
          {"tril", onnx_triangle},
          {"triu", onnx_triangle}};
}

}  // namespace tutti::models::detail

#endif
