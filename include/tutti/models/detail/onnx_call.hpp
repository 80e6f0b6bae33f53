// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/models/detail/onnx_writer.hpp>

// OnnxCall, which onnx_writer.hpp declares.

#if TUTTI_BODIES

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::models::detail {

TUTTI_INLINE OnnxCall::OnnxCall(OnnxWriter& writer, const std::vector<const TracedCall*>& calls)
    : to(writer),
      calls_(calls),
      schema_(c10::Dispatcher::singleton().findSchema(calls[0]->name)->schema()),
      used_(calls[0]->arguments.size()) {}

TUTTI_INLINE std::optional<std::size_t> OnnxCall::find(std::string_view argument) const {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (schema_.arguments()[i].name() == argument) {
      return i;
    }
  }
  return std::nullopt;
}

TUTTI_INLINE bool OnnxCall::given(std::string_view argument) const {
  const auto i = find(argument);
  if (!i) {
    return false;
  }
  const TracedArgument& own = calls_[0]->arguments[*i];
  return own.tensors.empty() ? !own.value.isNone() : own.tensors[0] >= 0;
}

TUTTI_INLINE bool OnnxCall::is_tensor(std::string_view argument) const {
  return given(argument) && !calls_[0]->arguments[*find(argument)].tensors.empty();
}

TUTTI_INLINE const std::vector<int>& OnnxCall::values(std::string_view argument) const {
  return calls_[0]->arguments[find(argument).value()].tensors;
}

TUTTI_INLINE std::string OnnxCall::tensor(std::string_view argument) {
  return to.name(values(argument).at(0));
}

TUTTI_INLINE const at::Tensor& OnnxCall::sample(std::string_view argument) const {
  return to.traces()[0].tensor(values(argument).at(0));
}

TUTTI_INLINE std::vector<Numbers> OnnxCall::sizes(std::string_view argument) const {
  return to.sizes_of(values(argument).at(0));
}

TUTTI_INLINE bool OnnxCall::varies(std::size_t argument) const {
  const c10::IValue& first = calls_[0]->arguments[argument].value;
  return std::any_of(calls_.begin(), calls_.end(), [&](const TracedCall* call) {
    const c10::IValue& other = call->arguments[argument].value;
    return other.tagKind() != first.tagKind() || !(other == first);
  });
}

TUTTI_INLINE const c10::IValue& OnnxCall::value(std::string_view argument, bool fixed) {
  const std::size_t i = find(argument).value();
  TUTTI_CHECK(!fixed || !varies(i), "export_onnx: ", problem(), ": its argument ", argument,
              " differs with the sizes of the inputs");
  used_[i] = true;
  return calls_[0]->arguments[i].value;
}

TUTTI_INLINE std::int64_t OnnxCall::integer(std::string_view argument, std::int64_t otherwise) {
  return given(argument) ? value(argument, true).toInt() : otherwise;
}

TUTTI_INLINE std::vector<std::int64_t> OnnxCall::integers(std::string_view argument) {
  if (!given(argument)) {
    return {};
  }
  const c10::IValue& own = value(argument, true);
  return own.isInt() ? std::vector<std::int64_t>{own.toInt()} : own.toIntVector();
}

TUTTI_INLINE double OnnxCall::real(std::string_view argument, double otherwise) {
  return given(argument) ? value(argument, true).toScalar().toDouble() : otherwise;
}

TUTTI_INLINE at::Scalar OnnxCall::scalar(std::string_view argument) {
  const std::size_t i = find(argument).value();
  return calls_[0]->arguments[i].value.toScalar();
}

TUTTI_INLINE bool OnnxCall::flag(std::string_view argument, bool otherwise) {
  return given(argument) ? value(argument, true).toBool() : otherwise;
}

TUTTI_INLINE std::vector<double> OnnxCall::reals(std::string_view argument) {
  return given(argument) ? value(argument, true).toDoubleVector() : std::vector<double>();
}

TUTTI_INLINE bool OnnxCall::is_text(std::string_view argument) const {
  return given(argument) && calls_[0]->arguments[*find(argument)].value.isString();
}

TUTTI_INLINE std::string OnnxCall::text(std::string_view argument) {
  return given(argument) ? std::string(value(argument, true).toStringRef()) : std::string();
}

TUTTI_INLINE Numbers OnnxCall::numbers(std::string_view argument) {
  const std::size_t i = find(argument).value();
  used_[i] = true;
  Numbers out;
  for (const TracedCall* call : calls_) {
    out.push_back(call->arguments[i].value.toInt());
  }
  return out;
}

TUTTI_INLINE std::string OnnxCall::operand(std::string_view argument, at::ScalarType type) {
  if (is_tensor(argument)) {
    return to.cast(tensor(argument), sample(argument).scalar_type(), type);
  }
  const std::size_t i = find(argument).value();
  if (varies(i) && calls_[0]->arguments[i].value.isInt()) {
    const std::string number = to.node("Squeeze", {to.sizes({numbers(argument)})});
    return to.cast(number, at::kLong, type);
  }
  return to.number(real(argument), type);
}

TUTTI_INLINE std::int64_t OnnxCall::dim(std::string_view argument, std::string_view of) {
  const std::int64_t own = integer(argument);
  return own < 0 ? own + sample(of).dim() : own;
}

TUTTI_INLINE const at::Tensor& OnnxCall::result(std::size_t i) const {
  return to.traces()[0].tensor(calls_[0]->results.at(i));
}

TUTTI_INLINE bool OnnxCall::lasts(std::size_t i) const {
  return !to.traces()[0].values[static_cast<std::size_t>(calls_[0]->results.at(i))].overwritten;
}

TUTTI_INLINE std::vector<Numbers> OnnxCall::result_sizes(std::size_t i) const {
  return to.sizes_of(calls_[0]->results.at(i));
}

TUTTI_INLINE bool OnnxCall::set(std::string name, std::size_t i) {
  to.set(calls_[0]->results.at(i), std::move(name));
  return true;
}

TUTTI_INLINE bool OnnxCall::refuse(std::string reason) {
  reason_ = std::move(reason);
  return false;
}

TUTTI_INLINE std::string OnnxCall::problem() const {
  const std::string& place = calls_[0]->place;
  const std::size_t dot = place.rfind('.');
  const std::string layer = dot == std::string::npos ? place : place.substr(0, dot);
  const auto reads_it = [&](const TracedArgument& argument) {
    return std::any_of(argument.tensors.begin(), argument.tensors.end(), [&](int value) {
      return value >= 0 && to.traces()[0].values[static_cast<std::size_t>(value)].kind ==
                               TracedValue::Kind::weight;
    });
  };
  const auto& arguments = calls_[0]->arguments;
  const bool own = std::any_of(arguments.begin(), arguments.end(), reads_it);
  return (own             ? "'" + layer + "' calls "
          : layer.empty() ? "the model calls "
                          : "after '" + layer + "' the model calls ") +
         calls_[0]->name.name +
         (reason_.empty() ? ", which export_onnx() does not write" : " " + reason_);
}

TUTTI_INLINE void OnnxCall::check_used() const {
  for (std::size_t i = 0; i < used_.size() && !all_used_; ++i) {
    TUTTI_CHECK(used_[i] || !varies(i), "export_onnx: ", problem(), ": its argument ",
                schema_.arguments()[i].name(), " differs with the sizes of the inputs");
  }
}

}  // namespace tutti::models::detail

#endif
