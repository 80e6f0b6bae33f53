// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>

// What a forward pass calls of ATen, as export_onnx() writes it down.
namespace tutti::models::detail {

// A tensor of a forward pass, until something is written into its memory; what is in it then is
// another. foreign: made of one by other means than ATen's operators, or changed through a view.
struct TracedValue {
  enum class Kind : std::uint8_t { input, weight, constant, computed, foreign };
  Kind kind = Kind::computed;
  at::Tensor tensor;
  std::string name{};        // of inputs and weights
  at::Tensor copy{};         // of a constant, as it was when it was first read
  bool overwritten = false;  // something else is in the memory by now
};

// An argument of a call: what it is, and which values its tensors are; -1: undefined.
struct TracedArgument {
  c10::IValue value;
  std::vector<int> tensors;
};

struct TracedCall {
  c10::OperatorName name;
  std::vector<TracedArgument> arguments;
  std::vector<int> results;           // the values of all tensors it returned
  std::vector<std::size_t> children;  // the calls of which it is made
  std::string place;                  // the last weight that was read by then

  // "aten::linear", without the underscore of those that write into their first argument.
  [[nodiscard]] std::string operation() const;
};

// One forward pass.
struct Trace {
  std::vector<TracedValue> values;
  std::vector<TracedCall> calls;
  std::vector<std::size_t> top;  // the calls that the model makes itself
  std::vector<std::pair<std::string, int>> outputs;

  [[nodiscard]] const at::Tensor& tensor(int value) const {
    return values[static_cast<std::size_t>(value)].tensor;
  }
};

using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;
using ForwardFunction = std::function<NamedTensorList(const NamedTensorList&)>;

// Runs `forward` once and writes down the calls of this thread, without gradients. weights: the
// model's parameters and buffers. Tensors of other origin become constants.
Trace trace(const NamedTensorList& weights, const NamedTensorList& inputs,
            const ForwardFunction& forward);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <exception>
#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <tutti/core/detail/only_operators.hpp>

namespace tutti::models::detail {

TUTTI_INLINE std::string TracedCall::operation() const {
  std::string out = name.name;
  if (out.ends_with('_') && !out.ends_with("__")) {
    out.pop_back();
  }
  return out;
}

// RecordFunction::inputs() of a program without NDEBUG asserts a flag that a LibTorch with NDEBUG,
// as all its packages are, never sets; so this reads the member, as the language allows it.
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& function);
template <auto Inputs>
struct RecordedInputs {
  friend c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& function) {
    return function.*Inputs;
  }
};
template struct RecordedInputs<&at::RecordFunction::inputs_>;

// Fills a trace while it lives. LibTorch's profiler sees the same calls by the same means.
class Recorder {
 public:
  explicit Recorder(Trace& trace) : trace_(&trace), before_(current()) {
    current() = this;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&Recorder::start, &Recorder::end)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() {
    at::removeCallback(handle_);
    current() = before_;
  }

  int add(TracedValue value);
  int value_of(const at::Tensor& x);

  // Throws what went wrong in a call.
  void check() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  struct Context final : at::ObserverContext {
    std::size_t call = 0;
    std::vector<std::pair<at::Tensor, int>> written;  // arguments that the call changes
  };

  static Recorder*& current() {
    static thread_local Recorder* recorder = nullptr;
    return recorder;
  }

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function);
  void end_call(const at::RecordFunction& function, const Context& context);

  int unknown(const at::Tensor& x);
  std::vector<int> values_of(const c10::IValue& value);
  void write(const at::Tensor& x);

  Trace* trace_;
  Recorder* before_;
  at::CallbackHandle handle_{};
  at::RecordFunctionGuard enabled_{true};
  std::vector<std::size_t> open_;
  std::string place_;
  std::vector<at::Tensor> kept_;
  std::exception_ptr failure_;                // LibTorch only warns of what its callbacks throw
  std::unordered_map<const void*, int> now_;  // by the tensor
  std::unordered_map<const void*, std::vector<int>> memory_;  // by the storage
};

// All tensors of an argument or a result, in order.
TUTTI_INLINE void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList() || value.isList() || value.isTuple()) {
    const auto add = [&](const c10::IValue& part) {
      if (part.isTensor() || part.isNone()) {
        out.push_back(part.isNone() ? at::Tensor() : part.toTensor());
      }
    };
    if (value.isTuple()) {
      for (const c10::IValue& part : value.toTupleRef().elements()) {
        add(part);
      }
    } else {
      for (const c10::IValue& part : value.toListRef()) {
        add(part);
      }
    }
  }
}

TUTTI_INLINE int Recorder::add(TracedValue value) {
  const int id = static_cast<int>(trace_->values.size());
  now_[value.tensor.unsafeGetTensorImpl()] = id;
  if (value.tensor.has_storage()) {
    memory_[value.tensor.storage().unsafeGetStorageImpl()].push_back(id);
  }
  trace_->values.push_back(std::move(value));
  return id;
}

TUTTI_INLINE int Recorder::value_of(const at::Tensor& x) {
  if (!x.defined()) {
    return -1;
  }
  const auto found = now_.find(x.unsafeGetTensorImpl());
  if (found == now_.end()) {
    return unknown(x);
  }
  const TracedValue& value = trace_->values[static_cast<std::size_t>(found->second)];
  if (value.overwritten && value.kind != TracedValue::Kind::foreign) {
    return add({.kind = TracedValue::Kind::foreign, .tensor = x});
  }
  if (value.kind == TracedValue::Kind::weight) {
    place_ = value.name;
  }
  return found->second;
}

// A tensor that no call has returned: another name of one that is known, or a constant.
TUTTI_INLINE int Recorder::unknown(const at::Tensor& x) {
  using Kind = TracedValue::Kind;
  Kind kind = Kind::constant;
  if (x.has_storage()) {
    for (const int id : memory_[x.storage().unsafeGetStorageImpl()]) {
      const TracedValue& other = trace_->values[static_cast<std::size_t>(id)];
      const bool same = other.tensor.sizes() == x.sizes() &&
                        other.tensor.strides() == x.strides() &&
                        other.tensor.storage_offset() == x.storage_offset() &&
                        other.tensor.scalar_type() == x.scalar_type();
      if (same && !other.overwritten) {
        kept_.push_back(x);  // else another tensor could have its address
        return now_[x.unsafeGetTensorImpl()] = id;
      }
      const bool lasts = other.kind == Kind::weight || other.kind == Kind::constant;
      kind = lasts ? kind : Kind::foreign;
    }
  }
  TracedValue value{.kind = kind, .tensor = x};
  if (kind == Kind::constant) {
    const at::RecordFunctionGuard paused(/*is_enabled=*/false);
    value.copy = x.detach().clone();
  }
  return add(std::move(value));
}

TUTTI_INLINE std::vector<int> Recorder::values_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  collect(value, tensors);
  std::vector<int> out;
  for (const at::Tensor& x : tensors) {
    out.push_back(value_of(x));
  }
  return out;
}

// What the tensor held has a value of its own from here on, and so has what shares its memory.
TUTTI_INLINE void Recorder::write(const at::Tensor& x) {
  if (x.has_storage()) {
    for (const int id : memory_[x.storage().unsafeGetStorageImpl()]) {
      trace_->values[static_cast<std::size_t>(id)].overwritten = true;
    }
  }
  add({.kind = TracedValue::Kind::computed, .tensor = x});
}

TUTTI_INLINE std::unique_ptr<at::ObserverContext> Recorder::start(
    const at::RecordFunction& function) {
  Recorder* const self = current();
  if (self == nullptr || self->failure_ || !function.operator_name()) {
    return nullptr;
  }
  try {
    return self->begin_call(function);
  } catch (...) {
    self->failure_ = std::current_exception();
    return nullptr;
  }
}

TUTTI_INLINE void Recorder::end(const at::RecordFunction& function, at::ObserverContext* context) {
  Recorder* const self = current();
  if (self == nullptr || self->failure_ || context == nullptr) {
    return;
  }
  try {
    self->end_call(function, *static_cast<const Context*>(context));
  } catch (...) {
    self->failure_ = std::current_exception();
  }
}

TUTTI_INLINE std::unique_ptr<at::ObserverContext> Recorder::begin_call(
    const at::RecordFunction& function) {
  auto context = std::make_unique<Context>();
  context->call = trace_->calls.size();
  TracedCall call{.name = *function.operator_name(),
                  .arguments = {},
                  .results = {},
                  .children = {},
                  .place = {}};
  const auto inputs = recorded_inputs(function);
  for (const c10::IValue& input : inputs) {
    std::vector<int> tensors = values_of(input);
    const bool plain = tensors.empty() && !input.isTensor();
    call.arguments.push_back({plain ? input : c10::IValue(), std::move(tensors)});
  }
  call.place = place_;
  const auto op = c10::Dispatcher::singleton().findSchema(call.name);
  const auto& arguments = op.value().schema().arguments();
  for (std::size_t i = 0; i < arguments.size() && i < inputs.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite() && inputs[i].isTensor()) {
      context->written.emplace_back(inputs[i].toTensor(), call.arguments[i].tensors.at(0));
    }
  }
  auto& siblings = open_.empty() ? trace_->top : trace_->calls[open_.back()].children;
  siblings.push_back(context->call);
  trace_->calls.push_back(std::move(call));
  open_.push_back(context->call);
  return context;
}

TUTTI_INLINE void Recorder::end_call(const at::RecordFunction& function, const Context& context) {
  open_.pop_back();
  for (const auto& [tensor, before] : context.written) {
    if (tensor.defined() && now_.at(tensor.unsafeGetTensorImpl()) == before) {
      write(tensor);
    }
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& output : function.outputs()) {
    collect(output, results);
  }
  std::vector<int> ids;
  for (const at::Tensor& x : results) {
    const bool known = !x.defined() || now_.contains(x.unsafeGetTensorImpl());
    ids.push_back(known ? value_of(x) : add({.kind = TracedValue::Kind::computed, .tensor = x}));
  }
  trace_->calls[context.call].results = std::move(ids);
}

TUTTI_INLINE Trace trace(const NamedTensorList& weights, const NamedTensorList& inputs,
                         const ForwardFunction& forward) {
  const c10::NoGradGuard no_grad;
  const ::tutti::detail::OnlyOperators only;
  Trace out;
  Recorder recorder(out);
  for (const auto& [name, tensor] : weights) {
    recorder.add({.kind = TracedValue::Kind::weight, .tensor = tensor, .name = name});
  }
  for (const auto& [name, tensor] : inputs) {
    recorder.add({.kind = TracedValue::Kind::input, .tensor = tensor, .name = name});
  }
  for (const auto& [name, tensor] : forward(inputs)) {
    out.outputs.emplace_back(name, recorder.value_of(tensor));
  }
  recorder.check();
  return out;
}

}  // namespace tutti::models::detail

#endif
