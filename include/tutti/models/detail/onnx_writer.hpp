// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <tutti/config.hpp>
#include <tutti/models/detail/onnx_file.hpp>
#include <tutti/models/detail/onnx_sizes.hpp>
#include <tutti/models/detail/onnx_trace.hpp>

// From forward passes to the graph of ONNX: what differs between passes of other sizes becomes a
// computation with those sizes.
namespace tutti::models::detail {

class OnnxCall;

// The graph as it grows.
class OnnxWriter {
 public:
  // There is more than one trace. They and the graph outlive this.
  OnnxWriter(const std::vector<Trace>& traces, std::vector<OnnxSymbol> symbols, OnnxGraph& graph);

  // Writes what the outputs need. Throws c10::Error that names what cannot be written, and where.
  void write();

  // The name in the graph of a value of trace 0.
  std::string name(int value);
  void set(int value, std::string name) { values_[value].name = std::move(name); }

  // A node, and the names of its outputs.
  std::vector<std::string> nodes(const std::string& op, std::vector<std::string> inputs,
                                 OnnxAttributes attributes, std::size_t outputs);
  std::string node(const std::string& op, std::vector<std::string> inputs,
                   OnnxAttributes attributes = {}) {
    return nodes(op, std::move(inputs), std::move(attributes), 1).front();
  }

  // Tensors that are known: any, a list of int64, a number of a type.
  std::string constant(const at::Tensor& value);
  std::string integers(const std::vector<std::int64_t>& values);
  std::string number(double value, at::ScalarType type);

  // A list of int64 whose numbers may follow the symbols.
  std::string sizes(const std::vector<Numbers>& dims);

  std::string cast(const std::string& name, at::ScalarType from, at::ScalarType to);

  // The matrix of which `name` is the transposed one; empty: it is none.
  [[nodiscard]] std::string transposed_from(const std::string& name) const;

  [[nodiscard]] const std::vector<Trace>& traces() const { return *traces_; }
  // The sizes of a value of trace 0, in each trace.
  [[nodiscard]] std::vector<Numbers> sizes_of(int value) const;

 private:
  friend class OnnxCall;

  struct Value {
    std::string name{};    // in the graph; empty: not there yet
    bool depends = false;  // on an input or a size
    bool of_weights = false;
    std::string problem{};  // why it cannot be written
  };

  void run(const std::vector<std::vector<std::size_t>>& lists, const std::string& parent);
  void call(const std::vector<const TracedCall*>& calls);
  void match(const std::vector<const TracedCall*>& calls);
  void pair(const std::vector<int>& values, const std::string& what);
  bool known_results(const std::vector<const TracedCall*>& calls);
  std::string kept(int value);
  std::string dimension(const Numbers& numbers);
  std::string symbol(std::size_t index);
  OnnxTensorInfo info(const std::string& name, int value);
  void prune();

  const std::vector<Trace>* traces_;
  std::vector<OnnxSymbol> symbols_;
  OnnxGraph* graph_;
  std::unordered_map<int, Value> values_;           // of trace 0
  std::vector<std::unordered_map<int, int>> same_;  // those of trace 0 in the others
  std::map<std::string, std::string> constants_;    // by type, sizes and content
  std::unordered_map<std::size_t, std::string> symbol_names_;
  std::map<std::string, std::size_t> counts_;
  std::string place_;
};

// A call of an operator, the same in all traces.
class OnnxCall {
 public:
  OnnxCall(OnnxWriter& writer, const std::vector<const TracedCall*>& calls);

  OnnxWriter& to;  // where it is written

  // Arguments by their names in PyTorch. Absent ones are not given.
  [[nodiscard]] bool given(std::string_view argument) const;
  [[nodiscard]] bool is_tensor(std::string_view argument) const;
  [[nodiscard]] std::string tensor(std::string_view argument);
  [[nodiscard]] const at::Tensor& sample(std::string_view argument) const;  // as in trace 0
  [[nodiscard]] const std::vector<int>& values(std::string_view argument) const;
  [[nodiscard]] std::vector<Numbers> sizes(std::string_view argument) const;
  // Numbers that are the same in all traces; throw c10::Error where they are not.
  [[nodiscard]] std::int64_t integer(std::string_view argument, std::int64_t otherwise = 0);
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view argument);
  [[nodiscard]] double real(std::string_view argument, double otherwise = 0);
  [[nodiscard]] at::Scalar scalar(std::string_view argument);
  [[nodiscard]] bool flag(std::string_view argument, bool otherwise = false);
  [[nodiscard]] std::vector<double> reals(std::string_view argument);
  [[nodiscard]] std::string text(std::string_view argument);
  [[nodiscard]] bool is_text(std::string_view argument) const;
  // A whole number in each trace.
  [[nodiscard]] Numbers numbers(std::string_view argument);
  // A tensor or a number as a tensor of that type.
  [[nodiscard]] std::string operand(std::string_view argument, at::ScalarType type);
  // The sizes of what it returns say what the other arguments do.
  void sizes_say_it() { all_used_ = true; }

  // A dimension, from 0, of an argument's.
  [[nodiscard]] std::int64_t dim(std::string_view argument = "dim", std::string_view of = "self");

  [[nodiscard]] const at::Tensor& result(std::size_t i = 0) const;
  // Nothing was written into a result later on: it is as it was returned.
  [[nodiscard]] bool lasts(std::size_t i = 0) const;
  [[nodiscard]] std::vector<Numbers> result_sizes(std::size_t i = 0) const;
  [[nodiscard]] std::size_t results() const { return calls_[0]->results.size(); }
  bool set(std::string name, std::size_t i = 0);

  // For a form that is not written; the reason is part of the message.
  bool refuse(std::string reason);
  [[nodiscard]] bool refused() const { return !reason_.empty(); }
  [[nodiscard]] std::string problem() const;
  [[nodiscard]] bool varies(std::size_t argument) const;
  void check_used() const;
  [[nodiscard]] std::string operation() const { return calls_[0]->operation(); }

 private:
  [[nodiscard]] std::optional<std::size_t> find(std::string_view argument) const;
  const c10::IValue& value(std::string_view argument, bool fixed);

  const std::vector<const TracedCall*>& calls_;
  const c10::FunctionSchema& schema_;
  std::vector<bool> used_;
  bool all_used_ = false;
  std::string reason_;
};

// Writes the call of an operator; false: not in this form.
using OnnxOperator = bool (*)(OnnxCall&);

// What writes an operator, "aten::linear"; null: nothing does.
OnnxOperator onnx_operator(const std::string& name);

// The operators that are written, for the documentation and its test.
std::vector<std::string> onnx_operators();

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <algorithm>
#include <functional>
#include <set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::models::detail {

TUTTI_INLINE OnnxWriter::OnnxWriter(const std::vector<Trace>& traces,
                                    std::vector<OnnxSymbol> symbols, OnnxGraph& graph)
    : traces_(&traces), symbols_(std::move(symbols)), graph_(&graph), same_(traces.size()) {
  const Trace& first = traces[0];
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    const TracedValue& value = first.values[i];
    const int id = static_cast<int>(i);
    const bool is_input = value.kind == TracedValue::Kind::input;
    if (is_input || value.kind == TracedValue::Kind::weight) {
      values_[id] = {
          .name = is_input ? value.name : "", .depends = is_input, .of_weights = !is_input};
      for (auto& same : same_) {
        same[id] = id;  // they come first, in the same order
      }
    }
    TUTTI_CHECK(value.kind != TracedValue::Kind::weight || !value.overwritten,
                "export_onnx: the forward pass changes '", value.name,
                "', which a file cannot do; do it in training alone");
  }
}

TUTTI_INLINE void OnnxWriter::write() {
  std::vector<std::vector<std::size_t>> lists;
  for (const Trace& trace : *traces_) {
    lists.push_back(trace.top);
  }
  run(lists, "the model");
  for (const auto& [label, value] : (*traces_)[0].outputs) {
    pair(
        [&] {
          std::vector<int> out;
          for (const Trace& trace : *traces_) {
            out.push_back(trace.outputs[graph_->outputs.size()].second);
          }
          return out;
        }(),
        "the output '" + label + "'");
    const std::string from = name(value);
    TUTTI_CHECK(values_[value].depends, "export_onnx: the output '", label,
                "' does not depend on the inputs");
    graph_->nodes.push_back(
        {.op = "Identity", .name = label, .inputs = {from}, .outputs = {label}, .attributes = {}});
    graph_->outputs.push_back(info(label, value));
  }
  for (std::size_t i = 0; i < (*traces_)[0].values.size(); ++i) {
    const TracedValue& value = (*traces_)[0].values[i];
    if (value.kind == TracedValue::Kind::input) {
      graph_->inputs.push_back(info(value.name, static_cast<int>(i)));
    }
  }
  prune();
}

// Forgets nodes that nothing needs, and weights that none has.
TUTTI_INLINE void OnnxWriter::prune() {
  std::set<std::string> needed;
  for (const OnnxTensorInfo& output : graph_->outputs) {
    needed.insert(output.name);
  }
  std::vector<OnnxNode> kept;
  for (auto node = graph_->nodes.rbegin(); node != graph_->nodes.rend(); ++node) {
    const auto is_needed = [&](const std::string& output) { return needed.contains(output); };
    if (std::any_of(node->outputs.begin(), node->outputs.end(), is_needed)) {
      needed.insert(node->inputs.begin(), node->inputs.end());
      kept.push_back(std::move(*node));
    }
  }
  std::reverse(kept.begin(), kept.end());
  graph_->nodes = std::move(kept);
  std::erase_if(graph_->weights, [&](const auto& w) { return !needed.contains(w.first); });
  for (const OnnxTensorInfo& input : graph_->inputs) {
    TUTTI_CHECK(needed.contains(input.name),
                "export_onnx: the outputs do not depend on the input '", input.name,
                "'; leave it out of the example");
  }
}

TUTTI_INLINE OnnxTensorInfo OnnxWriter::info(const std::string& label, int value) {
  OnnxTensorInfo out{.name = label, .type = (*traces_)[0].tensor(value).scalar_type(), .sizes = {}};
  for (const Numbers& numbers : sizes_of(value)) {
    const auto rule = size_rule(numbers, symbols_);
    if (rule && rule->symbols.empty()) {
      out.sizes.emplace_back(rule->offset);
    } else {
      out.sizes.emplace_back(rule ? rule->text(symbols_)
                                  : label + "_size_" + std::to_string(out.sizes.size()));
    }
  }
  return out;
}

TUTTI_INLINE std::vector<Numbers> OnnxWriter::sizes_of(int value) const {
  std::vector<Numbers> out(static_cast<std::size_t>((*traces_)[0].tensor(value).dim()));
  for (std::size_t t = 0; t < traces_->size(); ++t) {
    const auto other = t == 0 ? value : same_[t].at(value);
    const at::Tensor& x = (*traces_)[t].tensor(other);
    TUTTI_CHECK(x.dim() == static_cast<std::int64_t>(out.size()), "export_onnx: a tensor has ",
                out.size(), " dimensions for one size of the inputs and ", x.dim(), " for another");
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].push_back(x.size(static_cast<std::int64_t>(i)));
    }
  }
  return out;
}

TUTTI_INLINE void OnnxWriter::run(const std::vector<std::vector<std::size_t>>& lists,
                                  const std::string& parent) {
  const auto call_at = [&](std::size_t trace, std::size_t i) {
    return i < lists[trace].size() ? &(*traces_)[trace].calls[lists[trace][i]] : nullptr;
  };
  std::size_t longest = 0;
  for (const auto& list : lists) {
    longest = std::max(longest, list.size());
  }
  for (std::size_t i = 0; i < longest; ++i) {
    std::vector<const TracedCall*> calls;
    for (std::size_t t = 0; t < lists.size(); ++t) {
      calls.push_back(call_at(t, i));
      const auto text = [](const TracedCall* call) {
        return call != nullptr ? call->name.name : std::string("nothing");
      };
      TUTTI_CHECK(
          calls.back() != nullptr && calls[0] != nullptr && calls.back()->name == calls[0]->name,
          "export_onnx: ", parent, " calls ", text(calls[0]), " for one size of the inputs and ",
          text(calls.back()),
          " for another, and a file has one graph; give dynamic_axes those sizes alone "
          "that it treats alike, or dynamic_batch = false");
    }
    call(calls);
  }
}

// Values of the traces that are one and the same.
TUTTI_INLINE void OnnxWriter::pair(const std::vector<int>& values, const std::string& what) {
  for (std::size_t t = 1; t < values.size(); ++t) {
    const auto [found, is_new] = same_[t].emplace(values[0], values[t]);
    TUTTI_CHECK(is_new || found->second == values[t], "export_onnx: ", what,
                " reads different tensors for different sizes of the inputs");
  }
  if (values[0] >= 0 && !values_.contains(values[0])) {
    const auto kind = (*traces_)[0].values[static_cast<std::size_t>(values[0])].kind;
    Value& value = values_[values[0]];
    if (kind != TracedValue::Kind::constant) {
      value.depends = true;
      value.problem = what +
                      " reads a tensor that was computed by other means than ATen's operators, or "
                      "changed through a view of it";
    }
  }
}

TUTTI_INLINE void OnnxWriter::match(const std::vector<const TracedCall*>& calls) {
  for (std::size_t i = 0; i < calls[0]->arguments.size(); ++i) {
    const std::size_t count = calls[0]->arguments[i].tensors.size();
    for (std::size_t j = 0; j < count; ++j) {
      std::vector<int> values;
      for (const TracedCall* each : calls) {
        TUTTI_CHECK(each->arguments[i].tensors.size() == count, "export_onnx: ", each->name.name,
                    " reads ", count, " tensors for one size of the inputs and ",
                    each->arguments[i].tensors.size(), " for another");
        values.push_back(each->arguments[i].tensors[j]);
      }
      pair(values, calls[0]->name.name);
    }
  }
}

// All that it returns was there before: it returns its arguments.
TUTTI_INLINE bool OnnxWriter::known_results(const std::vector<const TracedCall*>& calls) {
  const auto known = [&](int value) { return value < 0 || values_.contains(value); };
  const auto& results = calls[0]->results;
  if (results.empty() || !std::all_of(results.begin(), results.end(), known)) {
    return false;
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<int> values;
    for (const TracedCall* each : calls) {
      values.push_back(each->results.at(i));
    }
    pair(values, calls[0]->name.name);
  }
  return true;
}

TUTTI_INLINE void OnnxWriter::call(const std::vector<const TracedCall*>& calls) {
  match(calls);
  if (known_results(calls)) {
    return;
  }
  OnnxCall view(*this, calls);
  Value result;
  for (std::size_t i = 0; i < calls[0]->arguments.size(); ++i) {
    result.depends = result.depends || view.varies(i);
    for (const int value : calls[0]->arguments[i].tensors) {
      if (value >= 0) {
        result.depends = result.depends || values_.at(value).depends;
        result.of_weights = result.of_weights || values_.at(value).of_weights;
      }
    }
  }
  if (calls[0]->results.empty()) {
    TUTTI_CHECK(!result.depends, "export_onnx: ", view.problem(),
                ": the forward pass takes a number out of a tensor that depends on the inputs, and "
                "what it does with it would be written for this example alone");
    return;
  }
  for (std::size_t i = 0; i < calls[0]->results.size(); ++i) {
    for (std::size_t t = 1; t < calls.size(); ++t) {
      TUTTI_CHECK(calls[t]->results.size() == calls[0]->results.size(),
                  "export_onnx: ", calls[0]->name.name, " returns ", calls[0]->results.size(),
                  " tensors for one size of the inputs and ", calls[t]->results.size(),
                  " for another");
      same_[t].emplace(calls[0]->results[i], calls[t]->results[i]);
    }
  }
  for (const int value : calls[0]->results) {
    if (value >= 0) {
      const auto sizes = sizes_of(value);
      result.depends = result.depends || !std::all_of(sizes.begin(), sizes.end(), all_equal);
    }
  }
  const auto finish = [&](const std::string& problem) {
    for (const int value : calls[0]->results) {
      if (value < 0) {
        continue;
      }
      Value& own = values_[value];
      own.depends = result.depends;
      own.of_weights = result.of_weights;
      own.problem = own.name.empty() && result.depends ? problem : "";
    }
  };
  if (!result.depends && !result.of_weights) {
    return finish("");
  }
  place_ = calls[0]->place;
  if (const OnnxOperator found = onnx_operator(calls[0]->operation());
      found != nullptr && found(view)) {
    view.check_used();
    return finish(view.problem());  // of results that were not written
  }
  std::vector<std::vector<std::size_t>> children;
  for (const TracedCall* each : calls) {
    children.push_back(each->children);
  }
  const auto empty = [](const auto& list) { return list.empty(); };
  if (result.depends && !view.refused() && std::none_of(children.begin(), children.end(), empty)) {
    run(children, calls[0]->name.name);
    for (const int value : calls[0]->results) {
      if (value >= 0 && !values_.contains(value)) {
        values_[value] = {.depends = true, .problem = view.problem()};
      }
    }
    return;
  }
  finish(view.problem());
}

TUTTI_INLINE std::string OnnxWriter::name(int value) {
  Value& own = values_.at(value);
  if (own.name.empty()) {
    TUTTI_CHECK_NOT_IMPLEMENTED(own.problem.empty(), "export_onnx: ", own.problem);
    own.name = kept(value);
  }
  return own.name;
}

// A weight, or a tensor that is the same in all traces.
TUTTI_INLINE std::string OnnxWriter::kept(int value) {
  const auto of = [&](std::size_t t) -> const TracedValue& {
    const int id = t == 0 ? value : same_[t].at(value);
    return (*traces_)[t].values[static_cast<std::size_t>(id)];
  };
  const TracedValue& first = of(0);
  if (first.kind == TracedValue::Kind::weight) {
    const at::Tensor plain = first.tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    graph_->weights.emplace_back(first.name, plain);
    return first.name;
  }
  const auto content = [](const TracedValue& one) {
    return one.copy.defined() ? one.copy : one.tensor;
  };
  for (std::size_t t = 0; t < traces_->size(); ++t) {
    const TracedValue& other = of(t);
    const at::Tensor& x = content(other);
    const bool is_same = x.scalar_type() == content(first).scalar_type() &&
                         x.sizes() == content(first).sizes() && x.equal(content(first));
    TUTTI_CHECK(
        is_same && (other.copy.defined() || !other.overwritten),
        "export_onnx: the forward pass reads a tensor ", x.sizes(),
        " that is not the same in every run and that no operator makes of the inputs: it is "
        "random, or made by other means than ATen's operators for one size of the inputs, "
        "or written in several steps");
  }
  return constant(content(first).detach());
}

TUTTI_INLINE std::vector<std::string> OnnxWriter::nodes(const std::string& op,
                                                        std::vector<std::string> inputs,
                                                        OnnxAttributes attributes,
                                                        std::size_t outputs) {
  const std::size_t dot = place_.rfind('.');
  const std::string path = dot == std::string::npos ? "" : "/" + place_.substr(0, dot);
  const std::string label = path + "/" + op + "_" + std::to_string(counts_[op]++);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < outputs; ++i) {
    names.push_back(label + "_output_" + std::to_string(i));
  }
  graph_->nodes.push_back({.op = op,
                           .name = label,
                           .inputs = std::move(inputs),
                           .outputs = names,
                           .attributes = std::move(attributes)});
  return names;
}

TUTTI_INLINE std::string OnnxWriter::constant(const at::Tensor& value) {
  const at::Tensor plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous();
  std::string key = std::to_string(onnx_type(plain.scalar_type())) + c10::str(plain.sizes());
  key += ProtoMessage().bytes(1, plain).pieces().back();
  const auto [found, is_new] = constants_.emplace(std::move(key), "");
  if (is_new) {
    found->second = "/Constant_" + std::to_string(constants_.size() - 1);
    graph_->weights.emplace_back(found->second, plain);
  }
  return found->second;
}

TUTTI_INLINE std::string OnnxWriter::integers(const std::vector<std::int64_t>& values) {
  return constant(at::tensor(values, at::kLong));
}

TUTTI_INLINE std::string OnnxWriter::number(double value, at::ScalarType type) {
  return constant(at::scalar_tensor(value, at::TensorOptions().dtype(type)));
}

TUTTI_INLINE std::string OnnxWriter::symbol(std::size_t index) {
  std::string& out = symbol_names_[index];
  if (out.empty()) {
    const OnnxSymbol& own = symbols_[index];
    out = node("Shape", {own.input}, {{"start", own.axis}, {"end", own.axis + 1}});
  }
  return out;
}

// [1], int64.
TUTTI_INLINE std::string OnnxWriter::dimension(const Numbers& numbers) {
  const auto rule = size_rule(numbers, symbols_);
  TUTTI_CHECK(rule, "export_onnx: at or after '", place_, "' the forward pass computes the number ",
              numbers[0], " from the sizes of the inputs (", numbers,
              " for those that were tried) ",
              "in another way than by a factor and a sum; make the size that it depends on a fixed "
              "one");
  if (rule->symbols.empty()) {
    return integers({rule->offset});
  }
  std::string out = symbol(rule->symbols[0]);
  for (std::size_t i = 1; i < rule->symbols.size(); ++i) {
    out = node("Mul", {out, symbol(rule->symbols[i])});
  }
  const auto with = [&](const std::string& op, std::int64_t number, std::int64_t nothing) {
    out = number == nothing ? out : node(op, {out, integers({number})});
  };
  with("Mul", rule->factor, 1);
  with("Div", rule->divisor, 1);
  with("Add", rule->offset, 0);
  return out;
}

TUTTI_INLINE std::string OnnxWriter::sizes(const std::vector<Numbers>& dims) {
  std::vector<std::int64_t> fixed;
  for (const Numbers& numbers : dims) {
    fixed.push_back(numbers[0]);
  }
  if (std::all_of(dims.begin(), dims.end(), all_equal)) {
    return integers(fixed);
  }
  std::vector<std::string> parts;
  for (const Numbers& numbers : dims) {
    parts.push_back(dimension(numbers));
  }
  return parts.size() == 1 ? parts[0] : node("Concat", parts, {{"axis", std::int64_t{0}}});
}

TUTTI_INLINE std::string OnnxWriter::transposed_from(const std::string& name) const {
  const std::vector<std::int64_t> swapped{1, 0};
  for (auto node = graph_->nodes.rbegin(); node != graph_->nodes.rend(); ++node) {
    if (node->outputs[0] == name) {
      const bool is_it = node->op == "Transpose" &&
                         std::get<std::vector<std::int64_t>>(node->attributes[0].second) == swapped;
      return is_it ? node->inputs[0] : "";
    }
  }
  return {};
}

TUTTI_INLINE std::string OnnxWriter::cast(const std::string& from_name, at::ScalarType from,
                                          at::ScalarType to) {
  return from == to ? from_name : node("Cast", {from_name}, {{"to", onnx_type(to)}});
}

}  // namespace tutti::models::detail

// What it calls, which needs what is above.
#include <tutti/models/detail/onnx_call.hpp>
#include <tutti/models/detail/onnx_operators.hpp>

#endif
