// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>

/// A program that is only data: a list of calls of LibTorch's operators.
namespace tutti::models::detail {

/// Calls operators one after another. Values have numbers: first the inputs, then what each call
/// returns; a value is freed after its last use.
class OperatorProgram {
 public:
  /// name: for messages. inputs: how many tensors the program takes.
  /// Throws std::invalid_argument for calls that no program of the exporter has: an operator that
  /// this LibTorch lacks, changes its arguments or reads files, or arguments of other types.
  OperatorProgram(std::string name, const tutti::detail::Json& calls,
                  const tutti::detail::Json& results, std::size_t inputs);
  OperatorProgram(OperatorProgram&&) noexcept;
  ~OperatorProgram();

  /// The results for these inputs, all on `device`; no gradient is recorded. Throws c10::Error that
  /// names the operator which failed.
  [[nodiscard]] std::vector<at::Tensor> run(std::vector<at::Tensor>&& inputs,
                                            at::Device device) const;

 private:
  struct Body;
  std::unique_ptr<Body> body_;
};

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/models/detail/compiled_package.hpp>

namespace tutti::models::detail {

/// One argument of a call: a constant, a value, an integer where the call takes a tensor, the
/// model's device, or a list with values in it.
struct CallArgument {
  enum class Kind { constant, value, number, device, tensors, optional_tensors, integers };
  struct Element {
    std::int64_t number = 0;           // of a list of integers, where there is no value
    std::optional<std::size_t> value;  // its number; empty: none
  };
  Kind kind = Kind::constant;
  c10::IValue constant;
  std::size_t value = 0;
  bool last = false;  // nothing reads the value afterwards
  std::vector<Element> elements;
};

/// One call: of an operator, or of what is not one.
struct ProgramCall {
  enum class Kind { op, size, item, add, sub, mul, floordiv, mod, max, min };
  Kind kind = Kind::op;
  std::string name;
  std::optional<c10::OperatorHandle> op;
  std::vector<CallArgument> arguments;
  std::vector<std::size_t> unused;  // values that nothing reads after this call
  std::size_t results = 1;
};

struct OperatorProgram::Body {
  std::string name;
  std::vector<ProgramCall> calls;
  std::vector<std::size_t> results;
  std::size_t inputs = 0, values = 0;
};

/// A tensor that does not decide the type of a result, as Python's numbers do not.
TUTTI_INLINE at::Tensor python_number(const at::Scalar& value) {
  const at::Tensor out = c10::scalar_to_tensor(value);
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

/// Reads the calls of a program and checks them against the operators' schemas.
class CallReader {
 public:
  using Json = tutti::detail::Json;
  enum class Value { tensor, tensors, integer };

  explicit CallReader(std::size_t inputs) : kinds_(inputs, Value::tensor) {}

  std::vector<ProgramCall> calls(const Json& list) {
    std::vector<ProgramCall> out;
    for (const Json& each : list.array()) {
      out.push_back(call(each));
    }
    return out;
  }

  std::size_t result(const Json& text) const { return of_kind(text, Value::tensor); }
  std::size_t values() const { return kinds_.size(); }

 private:
  [[noreturn]] static void fail(const std::string& why) { throw std::invalid_argument(why); }

  static bool is_value(const Json& json) {
    return json.is_string() && json.string().starts_with('%');
  }

  std::size_t number_of(const Json& json) const {
    std::size_t out = 0;
    const std::string& text = json.string();
    for (std::size_t i = 1; i < text.size(); ++i) {
      const bool digit = text[i] >= '0' && text[i] <= '9' && out <= kinds_.size();
      out = digit ? out * 10 + static_cast<std::size_t>(text[i] - '0')
                  : std::numeric_limits<std::size_t>::max();
    }
    if (!is_value(json) || text.size() < 2 || out >= kinds_.size()) {
      fail("\"" + text + "\" is no value that a call before it made");
    }
    return out;
  }

  std::size_t of_kind(const Json& json, Value kind) const {
    const std::size_t out = number_of(json);
    if (kinds_[out] != kind) {
      fail("\"" + json.string() + "\" is of another kind than the call takes");
    }
    return out;
  }

  CallArgument value(const Json& json, Value kind) const {
    CallArgument out;
    out.kind = CallArgument::Kind::value;
    out.value = of_kind(json, kind);
    return out;
  }

  CallArgument integer(const Json& json) const {
    if (is_value(json)) {
      return value(json, Value::integer);
    }
    CallArgument out;
    out.constant = json.integer();
    return out;
  }

  ProgramCall call(const Json& json) {
    ProgramCall out;
    out.name = json.at("op").string();
    constexpr std::array<std::string_view, 10> own = {"",    "size",     "item", "add", "sub",
                                                      "mul", "floordiv", "mod",  "max", "min"};
    const auto found = std::find(own.begin() + 1, own.end(), out.name);
    if (found == own.end()) {
      operator_call(json, out);
      return out;
    }
    out.kind = static_cast<ProgramCall::Kind>(found - own.begin());
    const Json::Array& arguments = json.at("args").array();
    if (arguments.size() != 2) {
      fail(out.name + " has " + std::to_string(arguments.size()) + " arguments, expected 2");
    }
    const bool of_tensor = out.kind == ProgramCall::Kind::size;
    const bool of_list = out.kind == ProgramCall::Kind::item;
    out.arguments.push_back(of_tensor ? value(arguments[0], Value::tensor)
                            : of_list ? value(arguments[0], Value::tensors)
                                      : integer(arguments[0]));
    out.arguments.push_back(integer(arguments[1]));
    kinds_.push_back(of_list ? Value::tensor : Value::integer);
    return out;
  }

  void operator_call(const Json& json, ProgramCall& out) {
    const auto dot = out.name.find('.');
    const std::string name = out.name.substr(0, dot);
    const std::string overload = dot == std::string::npos ? "" : out.name.substr(dot + 1);
    if (!name.starts_with("aten::") || name == "aten::from_file") {
      fail("it calls " + out.name +
           ", and a program that is only data calls operators of aten that "
           "touch no file");
    }
    out.op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!out.op) {
      fail("it calls " + out.name +
           ", which this LibTorch does not have; export the model with the "
           "version of torch that trains it");
    }
    const c10::FunctionSchema& schema = out.op->schema();
    if (schema.is_mutable()) {
      fail("it calls " + out.name + ", which changes its arguments");
    }
    const Json::Array& given = json.at("args").array();
    if (given.size() > schema.arguments().size()) {
      fail(out.name + " is given " + std::to_string(given.size()) + " arguments, and it takes " +
           std::to_string(schema.arguments().size()));
    }
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& wanted = schema.arguments()[i];
      if (i < given.size()) {
        out.arguments.push_back(argument(given[i], wanted.real_type(), out.name));
      } else {
        if (!wanted.default_value()) {
          fail(out.name + " is not given its argument " + wanted.name());
        }
        out.arguments.emplace_back().constant = *wanted.default_value();
      }
    }
    out.results = schema.returns().size();
    for (const c10::Argument& result : schema.returns()) {
      kinds_.push_back(kind_of(result.real_type(), out.name));
    }
  }

  static Value kind_of(const c10::TypePtr& type, const std::string& name) {
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        return Value::tensor;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return Value::integer;
      case c10::TypeKind::ListType:
        if (type->containedType(0)->kind() == c10::TypeKind::TensorType) {
          return Value::tensors;
        }
        [[fallthrough]];
      default:
        fail("it calls " + name + ", which returns a " + type->str());
    }
  }

  CallArgument argument(const Json& json, const c10::TypePtr& type, const std::string& name) const {
    CallArgument out;
    switch (type->kind()) {
      case c10::TypeKind::OptionalType:
        return json.is_null() ? out : argument(json, type->containedType(0), name);
      case c10::TypeKind::TensorType:
        if (json.is_number()) {
          out.constant =
              python_number(json.is_int() ? at::Scalar(json.integer()) : at::Scalar(json.number()));
          return out;
        }
        if (kinds_[number_of(json)] == Value::integer) {
          out = value(json, Value::integer);
          out.kind = CallArgument::Kind::number;
          return out;
        }
        return value(json, Value::tensor);
      case c10::TypeKind::ListType:
        return list(json, type->containedType(0), name);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return integer(json);
      case c10::TypeKind::NumberType:
        if (json.is_bool()) {
          out.constant = json.boolean();
        } else if (json.is_int() || is_value(json)) {
          return integer(json);
        } else {
          out.constant = real(json);
        }
        return out;
      case c10::TypeKind::FloatType:
        out.constant = real(json);
        return out;
      case c10::TypeKind::BoolType:
        out.constant = json.boolean();
        return out;
      case c10::TypeKind::StringType:
        out.constant = json.at("string").string();
        return out;
      case c10::TypeKind::ScalarTypeType:
        out.constant = dtype_of(json.at("dtype").string());
        return out;
      case c10::TypeKind::LayoutType:
        if (json.at("layout").string() != "strided") {
          fail("the layout " + json.at("layout").string() + " is not known; expected strided");
        }
        out.constant = at::kStrided;
        return out;
      case c10::TypeKind::MemoryFormatType:
        out.constant = memory_format(json.at("memory_format").string());
        return out;
      case c10::TypeKind::DeviceObjType:
        if (json.at("device").string() != "model") {
          fail("the device is " + json.at("device").string() + ", expected \"model\"");
        }
        out.kind = CallArgument::Kind::device;
        return out;
      default:
        fail("it calls " + name + " with a " + type->str() + ", which is no data");
    }
  }

  static double real(const Json& json) {
    if (!json.is_object()) {
      return json.number();
    }
    const std::string& text = json.at("float").string();
    if (text != "inf" && text != "-inf" && text != "nan") {
      fail("the number " + text + " is not known; expected inf, -inf or nan");
    }
    const double limit = std::numeric_limits<double>::infinity();
    return text == "nan"   ? std::numeric_limits<double>::quiet_NaN()
           : text == "inf" ? limit
                           : -limit;
  }

  static at::MemoryFormat memory_format(const std::string& name) {
    constexpr std::pair<std::string_view, at::MemoryFormat> known[] = {
        {"contiguous_format", at::MemoryFormat::Contiguous},
        {"preserve_format", at::MemoryFormat::Preserve},
        {"channels_last", at::MemoryFormat::ChannelsLast},
        {"channels_last_3d", at::MemoryFormat::ChannelsLast3d}};
    for (const auto& each : known) {
      if (each.first == name) {
        return each.second;
      }
    }
    fail("the memory format " + name + " is not known");
  }

  CallArgument list(const Json& json, const c10::TypePtr& type, const std::string& name) const {
    using Kind = CallArgument::Kind;
    CallArgument out;
    const auto kind = type->kind();
    if (kind == c10::TypeKind::TensorType && is_value(json)) {
      return value(json, Value::tensors);
    }
    if (kind == c10::TypeKind::TensorType || kind == c10::TypeKind::OptionalType) {
      const bool optional = kind == c10::TypeKind::OptionalType;
      out.kind = optional ? Kind::optional_tensors : Kind::tensors;
      for (const Json& each : json.array()) {
        auto& element = out.elements.emplace_back();
        if (!optional || !each.is_null()) {
          element.value = of_kind(each, Value::tensor);
        }
      }
    } else if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) {
      out.kind = Kind::integers;
      for (const Json& each : json.is_int() ? Json::Array{json} : json.array()) {
        auto& element = out.elements.emplace_back();
        if (is_value(each)) {
          element.value = of_kind(each, Value::integer);
        } else {
          element.number = each.integer();
        }
      }
    } else if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::FloatType) {
      c10::List<bool> flags;
      c10::List<double> reals;
      for (const Json& each : json.array()) {
        kind == c10::TypeKind::BoolType ? flags.push_back(each.boolean())
                                        : reals.push_back(real(each));
      }
      out.constant = kind == c10::TypeKind::BoolType ? c10::IValue(flags) : c10::IValue(reals);
    } else {
      fail("it calls " + name + " with a list of " + type->str() + ", which is no data");
    }
    return out;
  }

  std::vector<Value> kinds_;
};

/// Marks the last use of each value, so that its memory is free for the next call.
TUTTI_INLINE void mark_last_uses(std::vector<ProgramCall>& calls,
                                 const std::vector<std::size_t>& results, std::size_t values) {
  std::vector<bool> used(values, false);
  for (const std::size_t result : results) {
    used[result] = true;
  }
  std::size_t first = values;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    first -= call->results;
    for (std::size_t i = first; i < first + call->results; ++i) {
      if (!used[i]) {
        call->unused.push_back(i);
      }
    }
    for (CallArgument& argument : call->arguments) {
      if (argument.kind == CallArgument::Kind::number && !used[argument.value]) {
        used[argument.value] = true;
        call->unused.push_back(argument.value);
      }
      for (const auto& element : argument.elements) {
        if (element.value && !used[*element.value]) {
          used[*element.value] = true;
          call->unused.push_back(*element.value);
        }
      }
    }
    // From behind, since an argument gives its value away.
    for (auto argument = call->arguments.rbegin(); argument != call->arguments.rend(); ++argument) {
      if (argument->kind == CallArgument::Kind::value && !used[argument->value]) {
        used[argument->value] = true;
        argument->last = true;
      }
    }
  }
}

/// A list argument of the values that it has in this run.
TUTTI_INLINE c10::IValue list_of(const CallArgument& argument,
                                 const std::vector<c10::IValue>& values) {
  using Kind = CallArgument::Kind;
  if (argument.kind == Kind::tensors) {
    c10::List<at::Tensor> list;
    for (const auto& element : argument.elements) {
      list.push_back(values[*element.value].toTensor());
    }
    return list;
  }
  if (argument.kind == Kind::optional_tensors) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& element : argument.elements) {
      list.push_back(element.value ? std::optional(values[*element.value].toTensor())
                                   : std::nullopt);
    }
    return list;
  }
  c10::List<std::int64_t> list;
  list.reserve(argument.elements.size());
  for (const auto& element : argument.elements) {
    list.push_back(element.value ? values[*element.value].toInt() : element.number);
  }
  return list;
}

/// What is computed of sizes; wraps around as unsigned numbers do.
TUTTI_INLINE std::int64_t compute(ProgramCall::Kind kind, std::int64_t a, std::int64_t b) {
  using Kind = ProgramCall::Kind;
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  switch (kind) {
    case Kind::add:
      return static_cast<std::int64_t>(x + y);
    case Kind::sub:
      return static_cast<std::int64_t>(x - y);
    case Kind::mul:
      return static_cast<std::int64_t>(x * y);
    case Kind::max:
      return std::max(a, b);
    case Kind::min:
      return std::min(a, b);
    default:
      break;
  }
  TUTTI_CHECK(b > 0, "it divides a size by ", b);
  const std::int64_t quotient = a / b - (a % b < 0 ? 1 : 0);  // rounded down, as Python does
  return kind == Kind::floordiv ? quotient : a - quotient * b;
}

TUTTI_INLINE void run_call(const ProgramCall& call, std::vector<c10::IValue>& values,
                           std::vector<c10::IValue>& stack, at::Device device) {
  using Kind = CallArgument::Kind;
  stack.clear();
  for (const CallArgument& argument : call.arguments) {
    if (argument.kind == Kind::constant) {
      stack.push_back(argument.constant);
    } else if (argument.kind == Kind::value && argument.last) {
      stack.push_back(std::move(values[argument.value]));
    } else if (argument.kind == Kind::value) {
      stack.push_back(values[argument.value]);
    } else if (argument.kind == Kind::number) {
      stack.emplace_back(python_number(values[argument.value].toInt()));
    } else if (argument.kind == Kind::device) {
      stack.emplace_back(device);
    } else {
      stack.push_back(list_of(argument, values));
    }
  }
  if (call.kind == ProgramCall::Kind::op) {
    call.op->callBoxed(stack);
  } else if (call.kind == ProgramCall::Kind::size) {
    stack = {stack[0].toTensor().size(stack[1].toInt())};
  } else if (call.kind == ProgramCall::Kind::item) {
    const auto list = stack[0].toTensorVector();
    const std::int64_t at = stack[1].toInt();
    TUTTI_CHECK(at >= 0 && at < static_cast<std::int64_t>(list.size()), "a list of ", list.size(),
                " tensors has no element ", at);
    stack = {list[static_cast<std::size_t>(at)]};
  } else {
    stack = {compute(call.kind, stack[0].toInt(), stack[1].toInt())};
  }
  for (c10::IValue& result : stack) {
    values.push_back(std::move(result));
  }
  for (const std::size_t value : call.unused) {
    values[value] = {};
  }
}

TUTTI_INLINE OperatorProgram::OperatorProgram(std::string name, const tutti::detail::Json& calls,
                                              const tutti::detail::Json& results,
                                              std::size_t inputs)
    : body_(std::make_unique<Body>()) {
  CallReader reader(inputs);
  body_->name = std::move(name);
  body_->inputs = inputs;
  body_->calls = reader.calls(calls);
  for (const auto& result : results.array()) {
    body_->results.push_back(reader.result(result));
  }
  body_->values = reader.values();
  mark_last_uses(body_->calls, body_->results, body_->values);
}

TUTTI_INLINE OperatorProgram::OperatorProgram(OperatorProgram&&) noexcept = default;
TUTTI_INLINE OperatorProgram::~OperatorProgram() = default;

TUTTI_INLINE std::vector<at::Tensor> OperatorProgram::run(std::vector<at::Tensor>&& inputs,
                                                          at::Device device) const {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  std::vector<c10::IValue> values, stack;
  values.reserve(body_->values);
  for (at::Tensor& input : inputs) {
    values.emplace_back(std::move(input));
  }
  inputs.clear();
  for (const ProgramCall& call : body_->calls) {
    try {
      run_call(call, values, stack, device);
    } catch (const c10::Error& error) {
      TUTTI_CHECK(false, "CompiledNet: ", call.name, " of the program ", body_->name,
                  " failed: ", error.what_without_backtrace());
    }
  }
  std::vector<at::Tensor> out;
  out.reserve(body_->results.size());
  for (const std::size_t result : body_->results) {
    out.push_back(values[result].toTensor());
  }
  return out;
}

}  // namespace tutti::models::detail

#endif
