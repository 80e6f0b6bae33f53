// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/failing_layer.hpp>

namespace tutti::train {

namespace detail {

namespace jit = ::torch::jit;

// The operators that this thread calls while it lives, as LibTorch's tracer sees them.
class Calls {
 public:
  explicit Calls(const torch::nn::Module& model) : before_(jit::tracer::getTracingState()) {
    tracing_->warn = false;
    for (const auto& parameter : model.named_parameters()) {
      add(parameter.key(), parameter.value());
    }
    for (const auto& buffer : model.named_buffers()) {
      add(buffer.key(), buffer.value());
    }
    jit::tracer::setTracingState(tracing_);
  }
  ~Calls() { jit::tracer::setTracingState(before_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// To be called when an exception has come. It was thrown inside of the last operator if the
  /// tracer is off, as it is during one.
  void end() {
    inside_ = !jit::tracer::isTracing();
    for (const jit::Node* call : tracing_->graph->nodes()) {
      see(*call);
    }
  }

  [[nodiscard]] bool inside() const { return inside_; }

  /// The parameter or buffer of the model that the last operator was given first; empty: none.
  [[nodiscard]] const std::string& own() const { return own_; }
  /// The same of the last operator that was given one.
  [[nodiscard]] const std::string& latest_own() const { return latest_own_; }
  /// The last operator: `aten::add was given Float[3, 2] and Float[5]`.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  using Values = std::vector<const jit::Value*>;

  void add(const std::string& name, const at::Tensor& tensor) {
    jit::Value* const value = tracing_->graph->addInput();
    value->inferTypeFrom(tensor);
    tracing_->setValue(tensor, value);
    owns_[value] = name + " " + type_of(*value);
  }

  // What is computed of tensors of the model alone, as a transposed weight is, counts as the first
  // of them.
  void see(const jit::Node& call) {
    const Values tensors = tensors_of(call);
    own_.clear();
    text_ = std::string(call.kind().toQualString()) + " was given ";
    bool all_own = !tensors.empty();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto known = owns_.find(tensors[i]);
      all_own = all_own && known != owns_.end();
      text_ += i == 0 ? "" : i + 1 == tensors.size() ? " and " : ", ";
      text_ += known == owns_.end() ? type_of(*tensors[i]) : known->second;
      own_ = own_.empty() && known != owns_.end() ? known->second : own_;
    }
    text_ += tensors.empty() ? "no tensor" : "";
    for (const jit::Value* output : call.outputs()) {
      if (all_own) {
        owns_[output] = own_;
      }
    }
    own_.resize(std::min(own_.size(), own_.find(' ')));
    latest_own_ = own_.empty() ? latest_own_ : own_;
  }

  static Values tensors_of(const jit::Node& call) {
    Values out;
    for (const jit::Value* input : call.inputs()) {
      if (input->node()->kind() == c10::prim::ListConstruct) {
        const Values parts = tensors_of(*input->node());
        out.insert(out.end(), parts.begin(), parts.end());
      } else if (input->type()->cast<c10::TensorType>()) {
        out.push_back(input);
      }
    }
    return out;
  }

  static std::string type_of(const jit::Value& value) {
    const auto type = value.type()->cast<c10::TensorType>();
    const auto sizes = type->sizes().concrete_sizes();
    return type->scalarType() && sizes ? c10::str(*type->scalarType(), at::IntArrayRef(*sizes))
                                       : "a tensor";
  }

  std::shared_ptr<jit::tracer::TracingState> before_;
  std::shared_ptr<jit::tracer::TracingState> tracing_ =
      std::make_shared<jit::tracer::TracingState>();
  std::map<const jit::Value*, std::string> owns_;  // names with types
  bool inside_ = false;
  std::string own_, latest_own_, text_;
};

// The module that has this parameter: `"head.fc" (torch::nn::Linear)`.
TUTTI_INLINE std::string owner_of(const torch::nn::Module& model, const std::string& parameter) {
  const std::size_t end = parameter.rfind('.');
  const std::string path = end == std::string::npos ? "" : parameter.substr(0, end);
  for (const auto& module : model.named_modules()) {
    if (module.key() == path) {
      std::string type = module.value()->name();
      constexpr std::string_view replaceable = "tutti::nn::Replaceable<", behind = "Impl";
      if (type.starts_with(replaceable)) {
        type = type.substr(replaceable.size(), type.size() - replaceable.size() - 1);
      }
      if (type.ends_with(behind)) {
        type.resize(type.size() - behind.size());
      }
      return (path.empty() ? "that is the model itself" : '"' + path + '"') + " (" + type + ")";
    }
  }
  return '"' + path + '"';
}

}  // namespace detail

TUTTI_INLINE std::string failing_layer(const torch::nn::Module& model, const std::string& error,
                                       const std::function<void()>& forward) {
  detail::Calls calls(model);
  const c10::AutoGradMode no_grad(false);
  try {
    forward();
  } catch (const c10::Error& again) {
    if (again.what_without_backtrace() != error) {
      return "";
    }
    calls.end();
    if (calls.inside() && !calls.own().empty()) {
      return "The layer " + detail::owner_of(model, calls.own()) + " failed: " + calls.text() + ".";
    }
    return (calls.inside() ? calls.text() : "No operator of LibTorch failed") + "; " +
           (calls.latest_own().empty() ? "no layer of the model ran before it."
                                       : "the last layer before it is " +
                                             detail::owner_of(model, calls.latest_own()) + ".");
  } catch (...) {  // something else, of which this knows nothing
  }
  return "";
}

}  // namespace tutti::train
