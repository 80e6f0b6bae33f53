// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/models/detail/onnx_writer.hpp>

// The operators of ATen that export_onnx() writes, and those of one element each.
namespace tutti::models::detail {

using OnnxOperators = std::vector<std::pair<std::string_view, OnnxOperator>>;

OnnxOperators onnx_elementwise();
OnnxOperators onnx_reductions();
OnnxOperators onnx_shapes();
OnnxOperators onnx_layers();

// The name of an operator of ONNX, as an argument of templates.
template <std::size_t N>
struct OnnxName {
  char text[N];  // NOLINT: a type that templates take has no private parts

  consteval OnnxName(const char (&name)[N]) { std::copy_n(name, N, text); }  // NOLINT: converts
};

// What formulas are written with: operands of one type.
struct OnnxFormula {
  OnnxCall& call;
  at::ScalarType type = call.result().scalar_type();

  std::string x(std::string_view name = "self") { return call.operand(name, type); }
  std::string number(double value) { return call.to.number(value, type); }
  std::string f(const std::string& op, const std::string& a) { return call.to.node(op, {a}); }
  std::string f(const std::string& op, const std::string& a, const std::string& b) {
    return call.to.node(op, {a, b});
  }
  std::string f(const std::string& op, const std::string& a, double b) {
    return call.to.node(op, {a, number(b)});
  }
};

// Of two floating operands, or of one and a number, the type in which they are compared.
at::ScalarType onnx_common_type(OnnxCall& call);

// The dimensions in an argument of a call, from 0; empty: all.
std::vector<std::int64_t> onnx_axes(OnnxCall& call, std::string_view argument = "dim");

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <cmath>
#include <cstdint>
#include <numbers>
#include <unordered_map>

#include <ATen/ops/result_type.h>

#include <tutti/models/detail/onnx_layers.hpp>
#include <tutti/models/detail/onnx_shapes.hpp>

namespace tutti::models::detail {

TUTTI_INLINE const std::unordered_map<std::string, OnnxOperator>& onnx_table() {
  static const auto table = [] {
    std::unordered_map<std::string, OnnxOperator> out;
    for (const auto& list : {onnx_elementwise(), onnx_reductions(), onnx_shapes(), onnx_layers()}) {
      for (const auto& [name, write] : list) {
        out.emplace("aten::" + std::string(name), write);
      }
    }
    return out;
  }();
  return table;
}

TUTTI_INLINE OnnxOperator onnx_operator(const std::string& name) {
  const auto found = onnx_table().find(name);
  return found != onnx_table().end() ? found->second : nullptr;
}

TUTTI_INLINE std::vector<std::string> onnx_operators() {
  std::vector<std::string> out;
  for (const auto& [name, write] : onnx_table()) {
    out.push_back(name);
  }
  return out;
}

TUTTI_INLINE at::ScalarType onnx_common_type(OnnxCall& c) {
  if (!c.is_tensor("other")) {
    return at::result_type(c.sample("self"), c.scalar("other"));
  }
  return c.is_tensor("self") ? at::result_type(c.sample("self"), c.sample("other"))
                             : at::result_type(c.sample("other"), c.scalar("self"));
}

// An operator of ONNX that has the same operand and result.
template <OnnxName Op>
bool onnx_unary(OnnxCall& c) {
  return c.set(c.to.node(Op.text, {c.operand("self", c.result().scalar_type())}));
}

// An operator of ONNX on two operands of the result's type.
template <OnnxName Op>
bool onnx_binary(OnnxCall& c) {
  const at::ScalarType type = c.result().scalar_type();
  std::string other = c.operand("other", type);
  if (c.given("alpha") && c.real("alpha") != 1) {
    other = c.to.node("Mul", {other, c.to.number(c.real("alpha"), type)});
  }
  return c.set(c.to.node(Op.text, {c.operand("self", type), other}));
}

template <OnnxName Op, bool Not = false>
bool onnx_compare(OnnxCall& c) {
  const at::ScalarType type = onnx_common_type(c);
  const std::string out = c.to.node(Op.text, {c.operand("self", type), c.operand("other", type)});
  return c.set(Not ? c.to.node("Not", {out}) : out);
}

template <OnnxName Op>
bool onnx_logical(OnnxCall& c) {
  return c.set(c.to.node(Op.text, {c.operand("self", at::kBool), c.operand("other", at::kBool)}));
}

// Of bits: of bool the logical one.
template <OnnxName Op, OnnxName Bits>
bool onnx_bits(OnnxCall& c) {
  const at::ScalarType type = c.result().scalar_type();
  return c.set(c.to.node(type == at::kBool ? Op.text : Bits.text,
                         {c.operand("self", type), c.operand("other", type)}));
}

TUTTI_INLINE bool onnx_divide(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string a = g.x();
  const std::string b = g.x("other");
  const std::string mode =
      c.operation() == "aten::floor_divide" ? "floor" : c.text("rounding_mode");
  if (mode == "floor" && !at::isFloatingType(g.type)) {
    const std::string rest = c.to.node("Mod", {a, b});  // with the sign of b
    return c.set(g.f("Div", g.f("Sub", a, rest), b));
  }
  const std::string out = g.f("Div", a, b);
  if (mode.empty() || !at::isFloatingType(g.type)) {
    return c.set(out);
  }
  return c.set(mode == "floor" ? g.f("Floor", out)
                               : g.f("Mul", g.f("Sign", out), g.f("Floor", g.f("Abs", out))));
}

TUTTI_INLINE bool onnx_remainder(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string a = g.x();
  const std::string b = g.x("other");
  return c.set(at::isFloatingType(g.type)
                   ? g.f("Sub", a, g.f("Mul", b, g.f("Floor", g.f("Div", a, b))))
                   : g.f("Mod", a, b));
}

TUTTI_INLINE bool onnx_power(OnnxCall& c) {
  OnnxFormula g{c};
  return c.set(g.f("Pow", g.x(), g.x("exponent")));
}

TUTTI_INLINE bool onnx_reverse_subtract(OnnxCall& c) {
  OnnxFormula g{c};
  return c.set(g.f("Sub", g.x("other"), g.f("Mul", g.x(), c.real("alpha", 1))));
}

// self + value * tensor1 `op` tensor2.
template <OnnxName Op>
bool onnx_add_combined(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string both = g.f(Op.text, g.x("tensor1"), g.x("tensor2"));
  return c.set(g.f("Add", g.x(), g.f("Mul", both, c.real("value", 1))));
}

TUTTI_INLINE bool onnx_lerp(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string a = g.x();
  return c.set(g.f("Add", a, g.f("Mul", g.f("Sub", g.x("end"), a), g.x("weight"))));
}

TUTTI_INLINE bool onnx_clamp(OnnxCall& c) {
  OnnxFormula g{c};
  std::string out = g.x();
  for (const auto& [name, op] : {std::pair("min", "Max"), std::pair("max", "Min"),
                                 std::pair("min_val", "Max"), std::pair("max_val", "Min")}) {
    out = c.given(name) ? g.f(op, out, g.x(name)) : out;
  }
  if (c.operation() == "aten::relu6") {
    out = g.f("Min", g.f("Relu", out), 6);
  }
  return c.set(out);
}

TUTTI_INLINE bool onnx_where(OnnxCall& c) {
  OnnxFormula g{c};
  return c.given("self") &&
         c.set(c.to.node("Where", {c.operand("condition", at::kBool), g.x(), g.x("other")}));
}

TUTTI_INLINE bool onnx_masked_fill(OnnxCall& c) {
  OnnxFormula g{c};
  return c.set(c.to.node("Where", {c.tensor("mask"), g.x("value"), g.x()}));
}

TUTTI_INLINE bool onnx_gelu(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string x = g.x();
  std::string gate;
  if (c.text("approximate") == "tanh") {
    const std::string cube = g.f("Mul", g.f("Mul", g.f("Mul", x, x), x), 0.044715);
    gate = g.f("Tanh", g.f("Mul", g.f("Add", x, cube), std::sqrt(2 / std::numbers::pi)));
  } else {
    gate = g.f("Erf", g.f("Mul", x, std::sqrt(0.5)));
  }
  return c.set(g.f("Mul", g.f("Mul", x, 0.5), g.f("Add", gate, 1)));
}

TUTTI_INLINE bool onnx_silu(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string x = g.x();
  return c.set(g.f("Mul", x, g.f("Sigmoid", x)));
}

TUTTI_INLINE bool onnx_mish(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string x = g.x();
  return c.set(g.f("Mul", x, g.f("Tanh", g.f("Softplus", x))));
}

TUTTI_INLINE bool onnx_log_sigmoid(OnnxCall& c) {
  OnnxFormula g{c};
  return c.set(g.f("Neg", g.f("Softplus", g.f("Neg", g.x()))));
}

TUTTI_INLINE bool onnx_softplus(OnnxCall& c) {
  OnnxFormula g{c};
  const double beta = c.real("beta", 1);
  if (c.real("threshold", 20) < 15) {  // above it both are x to the last bit but for rounding
    return c.refuse("with a threshold below 15, which export_onnx() does not write");
  }
  return c.set(g.f("Div", g.f("Softplus", g.f("Mul", g.x(), beta)), beta));
}

TUTTI_INLINE bool onnx_hard_sigmoid(OnnxCall& c) {
  return c.set(c.to.node("HardSigmoid", {c.tensor("self")}, {{"alpha", 1.0 / 6}, {"beta", 0.5}}));
}

TUTTI_INLINE bool onnx_leaky_relu(OnnxCall& c) {
  return c.set(
      c.to.node("LeakyRelu", {c.tensor("self")}, {{"alpha", c.real("negative_slope", 0.01)}}));
}

TUTTI_INLINE bool onnx_elu(OnnxCall& c) {
  if (c.operation() == "aten::selu") {
    return c.set(c.to.node("Selu", {c.tensor("self")}));
  }
  if (c.operation() == "aten::celu") {
    return c.set(c.to.node("Celu", {c.tensor("self")}, {{"alpha", c.real("alpha", 1)}}));
  }
  if (c.real("scale", 1) != 1 || c.real("input_scale", 1) != 1) {
    return c.refuse("with a scale, which export_onnx() does not write");
  }
  return c.set(c.to.node("Elu", {c.tensor("self")}, {{"alpha", c.real("alpha", 1)}}));
}

TUTTI_INLINE bool onnx_prelu(OnnxCall& c) {
  std::string slope = c.tensor("weight");
  const std::int64_t rank = c.sample("self").dim();
  if (c.sample("weight").numel() > 1 && rank > 2) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(rank - 1), 1);
    shape[0] = -1;
    slope = c.to.node("Reshape", {slope, c.to.integers(shape)});
  }
  return c.set(c.to.node("PRelu", {c.tensor("self"), slope}));
}

TUTTI_INLINE bool onnx_reciprocal_root(OnnxCall& c) {
  OnnxFormula g{c};
  return c.set(g.f("Reciprocal", g.f("Sqrt", g.x())));
}

TUTTI_INLINE bool onnx_square(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string x = g.x();
  return c.set(g.f("Mul", x, x));
}

TUTTI_INLINE bool onnx_not(OnnxCall& c) {
  if (c.operation() == "aten::bitwise_not" && c.sample("self").scalar_type() != at::kBool) {
    return c.set(c.to.node("BitwiseNot", {c.tensor("self")}));
  }
  return c.set(c.to.node("Not", {c.operand("self", at::kBool)}));
}

TUTTI_INLINE bool onnx_softmax(OnnxCall& c) {
  const bool logs = c.operation().find("log_softmax") != std::string::npos;
  static_cast<void>(c.flag("half_to_float"));  // the result's type says it
  return c.set(c.to.node(logs ? "LogSoftmax" : "Softmax",
                         {c.operand("self", c.result().scalar_type())}, {{"axis", c.dim()}}));
}

TUTTI_INLINE std::vector<std::int64_t> onnx_axes(OnnxCall& c, std::string_view argument) {
  std::vector<std::int64_t> out = c.integers(argument);
  for (std::int64_t& axis : out) {
    axis += axis < 0 ? c.sample("self").dim() : 0;
  }
  return out;
}

TUTTI_INLINE std::string onnx_reduced(OnnxCall& c, const std::string& op, const std::string& x) {
  std::vector<std::string> inputs{x};
  if (const auto axes = onnx_axes(c); !axes.empty()) {
    inputs.push_back(c.to.integers(axes));
  }
  const std::int64_t keeps = c.flag("keepdim") ? 1 : 0;
  return c.to.node(op, std::move(inputs), {{"keepdims", keeps}});
}

template <OnnxName Op>
bool onnx_reduce(OnnxCall& c) {
  return c.set(onnx_reduced(c, Op.text, c.operand("self", c.result().scalar_type())));
}

// any and all.
template <OnnxName Op>
bool onnx_reduce_bool(OnnxCall& c) {
  const std::string truth = c.operand("self", at::kBool);
  const std::string out = onnx_reduced(c, Op.text, c.to.cast(truth, at::kBool, at::kInt));
  return c.set(c.to.cast(out, at::kInt, at::kBool));
}

// max and min: of two tensors, of all numbers, or along a dimension with the indices.
template <OnnxName Two, OnnxName All, OnnxName Index>
bool onnx_extreme(OnnxCall& c) {
  if (c.given("other")) {
    return onnx_binary<Two>(c);
  }
  const bool along = c.given("dim");
  if (along && c.results() > 1) {
    const std::int64_t keeps = c.flag("keepdim") ? 1 : 0;
    c.set(c.to.node(Index.text, {c.tensor("self")}, {{"axis", c.dim()}, {"keepdims", keeps}}), 1);
  }
  return c.set(onnx_reduced(c, All.text, c.tensor("self")));
}

template <OnnxName Op>
bool onnx_arg_extreme(OnnxCall& c) {
  if (!c.given("dim")) {
    return c.refuse("without a dimension, which export_onnx() does not write");
  }
  const std::int64_t keeps = c.flag("keepdim") ? 1 : 0;
  return c.set(c.to.node(Op.text, {c.tensor("self")}, {{"axis", c.dim()}, {"keepdims", keeps}}));
}

TUTTI_INLINE bool onnx_cumulative_sum(OnnxCall& c) {
  return c.set(c.to.node("CumSum", {c.operand("self", c.result().scalar_type()),
                                    c.to.constant(at::scalar_tensor(c.dim(), at::kLong))}));
}

TUTTI_INLINE bool onnx_norm(OnnxCall& c) {
  const double order = c.real("ord", 2);
  return order == 2   ? onnx_reduce<"ReduceL2">(c)
         : order == 1 ? onnx_reduce<"ReduceL1">(c)
                      : c.refuse("of order " + std::to_string(order) +
                                 ", which export_onnx() does not write");
}

// The variance or its root, around the mean.
TUTTI_INLINE bool onnx_variance(OnnxCall& c) {
  OnnxFormula g{c};
  const std::string x = g.x();
  const auto axes = onnx_axes(c);
  const auto sizes = c.sizes("self");
  double count = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool reduced =
        axes.empty() || std::count(axes.begin(), axes.end(), static_cast<std::int64_t>(i)) > 0;
    if (reduced && !all_equal(sizes[i])) {
      return c.refuse("over a dimension of any size, which export_onnx() does not write");
    }
    count *= reduced ? static_cast<double>(sizes[i][0]) : 1;
  }
  const double correction =
      c.given("unbiased") ? (c.flag("unbiased") ? 1 : 0) : c.real("correction", 1);
  std::vector<std::string> inputs{x};
  if (!axes.empty()) {
    inputs.push_back(c.to.integers(axes));
  }
  const std::string mean = c.to.node("ReduceMean", inputs, {{"keepdims", std::int64_t{1}}});
  const std::string away = g.f("Sub", x, mean);
  const std::string sum = onnx_reduced(c, "ReduceSum", g.f("Mul", away, away));
  const std::string variance = g.f("Div", sum, count - correction);
  return c.set(c.operation() == "aten::std" ? g.f("Sqrt", variance) : variance);
}

TUTTI_INLINE OnnxOperators onnx_elementwise() {
  return {{"relu", onnx_unary<"Relu">},
          {"sigmoid", onnx_unary<"Sigmoid">},
          {"tanh", onnx_unary<"Tanh">},
          {"exp", onnx_unary<"Exp">},
          {"log", onnx_unary<"Log">},
          {"neg", onnx_unary<"Neg">},
          {"abs", onnx_unary<"Abs">},
          {"sqrt", onnx_unary<"Sqrt">},
          {"erf", onnx_unary<"Erf">},
          {"sin", onnx_unary<"Sin">},
          {"cos", onnx_unary<"Cos">},
          {"floor", onnx_unary<"Floor">},
          {"ceil", onnx_unary<"Ceil">},
          {"round", onnx_unary<"Round">},
          {"sign", onnx_unary<"Sign">},
          {"reciprocal", onnx_unary<"Reciprocal">},
          {"hardswish", onnx_unary<"HardSwish">},
          {"hardsigmoid", onnx_hard_sigmoid},
          {"rsqrt", onnx_reciprocal_root},
          {"square", onnx_square},
          {"silu", onnx_silu},
          {"mish", onnx_mish},
          {"gelu", onnx_gelu},
          {"relu6", onnx_clamp},
          {"hardtanh", onnx_clamp},
          {"clamp", onnx_clamp},
          {"clamp_min", onnx_clamp},
          {"clamp_max", onnx_clamp},
          {"clip", onnx_clamp},
          {"leaky_relu", onnx_leaky_relu},
          {"elu", onnx_elu},
          {"selu", onnx_elu},
          {"celu", onnx_elu},
          {"prelu", onnx_prelu},
          {"_prelu_kernel", onnx_prelu},
          {"softplus", onnx_softplus},
          {"log_sigmoid", onnx_log_sigmoid},
          {"add", onnx_binary<"Add">},
          {"sub", onnx_binary<"Sub">},
          {"subtract", onnx_binary<"Sub">},
          {"rsub", onnx_reverse_subtract},
          {"mul", onnx_binary<"Mul">},
          {"multiply", onnx_binary<"Mul">},
          {"div", onnx_divide},
          {"divide", onnx_divide},
          {"true_divide", onnx_divide},
          {"floor_divide", onnx_divide},
          {"remainder", onnx_remainder},
          {"pow", onnx_power},
          {"maximum", onnx_binary<"Max">},
          {"minimum", onnx_binary<"Min">},
          {"addcmul", onnx_add_combined<"Mul">},
          {"addcdiv", onnx_add_combined<"Div">},
          {"lerp", onnx_lerp},
          {"eq", onnx_compare<"Equal">},
          {"ne", onnx_compare<"Equal", true>},
          {"lt", onnx_compare<"Less">},
          {"le", onnx_compare<"LessOrEqual">},
          {"gt", onnx_compare<"Greater">},
          {"ge", onnx_compare<"GreaterOrEqual">},
          {"logical_and", onnx_logical<"And">},
          {"logical_or", onnx_logical<"Or">},
          {"logical_xor", onnx_logical<"Xor">},
          {"logical_not", onnx_not},
          {"bitwise_not", onnx_not},
          {"bitwise_and", onnx_bits<"And", "BitwiseAnd">},
          {"bitwise_or", onnx_bits<"Or", "BitwiseOr">},
          {"where", onnx_where},
          {"masked_fill", onnx_masked_fill}};
}

TUTTI_INLINE OnnxOperators onnx_reductions() {
  return {{"softmax", onnx_softmax},
          {"_softmax", onnx_softmax},
          {"log_softmax", onnx_softmax},
          {"_log_softmax", onnx_softmax},
          {"mean", onnx_reduce<"ReduceMean">},
          {"sum", onnx_reduce<"ReduceSum">},
          {"amax", onnx_reduce<"ReduceMax">},
          {"amin", onnx_reduce<"ReduceMin">},
          {"any", onnx_reduce_bool<"ReduceMax">},
          {"all", onnx_reduce_bool<"ReduceMin">},
          {"max", onnx_extreme<"Max", "ReduceMax", "ArgMax">},
          {"min", onnx_extreme<"Min", "ReduceMin", "ArgMin">},
          {"argmax", onnx_arg_extreme<"ArgMax">},
          {"argmin", onnx_arg_extreme<"ArgMin">},
          {"cumsum", onnx_cumulative_sum},
          {"linalg_vector_norm", onnx_norm},
          {"var", onnx_variance},
          {"std", onnx_variance}};
}

}  // namespace tutti::models::detail

#endif
