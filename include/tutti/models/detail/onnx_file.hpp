// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>

// ONNX files: messages of Protocol Buffers, of which ONNX needs numbers, texts and messages in
// messages, so that a library for them would be longer than this.
// Source: onnx/onnx.proto3 of ONNX 1.13; protobuf.dev, "Encoding".
namespace tutti::models::detail {

// A message, put together field by field. Tensors in it are not copied.
class ProtoMessage {
 public:
  ProtoMessage& number(int field, std::int64_t value);
  ProtoMessage& real(int field, float value);
  ProtoMessage& text(int field, std::string_view value);
  ProtoMessage& message(int field, ProtoMessage part);
  // The numbers of a contiguous tensor in the CPU's memory, as they lie there.
  ProtoMessage& bytes(int field, const at::Tensor& tensor);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  // The pieces, in order; they live as long as this message.
  [[nodiscard]] std::vector<std::string_view> pieces() const;

 private:
  void varint(std::uint64_t value);
  void key(int field, int wire_type);
  std::string& tail();

  std::vector<std::variant<std::string, at::Tensor>> parts_;
  std::uint64_t size_ = 0;
};

// The number that ONNX gives a type. Throws c10::Error (ValueError) for one that it does not have.
std::int64_t onnx_type(at::ScalarType type);

// What an attribute of a node is: a number, text, a list of numbers, or a tensor.
using OnnxAttribute =
    std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, at::Tensor>;
using OnnxAttributes = std::vector<std::pair<std::string, OnnxAttribute>>;

struct OnnxNode {
  std::string op;
  std::string name;
  std::vector<std::string> inputs;  // empty texts: left out
  std::vector<std::string> outputs;
  OnnxAttributes attributes;
};

// A size of an input or an output: a number, or the name of one that differs.
using OnnxSize = std::variant<std::int64_t, std::string>;

struct OnnxTensorInfo {
  std::string name;
  at::ScalarType type{};
  std::vector<OnnxSize> sizes;
};

struct OnnxGraph {
  std::vector<OnnxTensorInfo> inputs, outputs;
  std::vector<OnnxNode> nodes;
  std::vector<std::pair<std::string, at::Tensor>> weights;  // in the CPU's memory, contiguous
};

// More bytes than a message of Protocol Buffers can have.
inline constexpr std::uint64_t proto_limit = 0x7fffffff;

// How many bytes the weights of a graph have.
std::uint64_t weight_bytes(const OnnxGraph& graph);

// The model of a graph, opset 18. data: the name of the file beside it that has the weights, those
// of 1 KiB and more; empty: they are in the model. `external` becomes what is in that file.
ProtoMessage onnx_model(const OnnxGraph& graph, const std::string& data,
                        std::vector<std::string_view>& external);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <bit>
#include <cstring>

#include <tutti/core/detail/throw.hpp>
#include <tutti/version.hpp>

namespace tutti::models::detail {

static_assert(std::endian::native == std::endian::little, "tutti: ONNX files are little-endian");

TUTTI_INLINE std::string& ProtoMessage::tail() {
  if (parts_.empty() || !std::holds_alternative<std::string>(parts_.back())) {
    parts_.emplace_back(std::string());
  }
  return std::get<std::string>(parts_.back());
}

TUTTI_INLINE void ProtoMessage::varint(std::uint64_t value) {
  std::string& out = tail();
  do {
    const std::uint64_t rest = value >> 7U;
    out += static_cast<char>((value & 0x7fU) | (rest != 0 ? 0x80U : 0U));
    ++size_;
    value = rest;
  } while (value != 0);
}

TUTTI_INLINE void ProtoMessage::key(int field, int wire_type) {
  varint(static_cast<std::uint64_t>(field) << 3U | static_cast<std::uint64_t>(wire_type));
}

TUTTI_INLINE ProtoMessage& ProtoMessage::number(int field, std::int64_t value) {
  key(field, 0);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

TUTTI_INLINE ProtoMessage& ProtoMessage::real(int field, float value) {
  key(field, 5);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  tail().append(bytes, sizeof value);
  size_ += sizeof value;
  return *this;
}

TUTTI_INLINE ProtoMessage& ProtoMessage::text(int field, std::string_view value) {
  key(field, 2);
  varint(value.size());
  tail().append(value);
  size_ += value.size();
  return *this;
}

TUTTI_INLINE ProtoMessage& ProtoMessage::message(int field, ProtoMessage part) {
  key(field, 2);
  varint(part.size_);
  for (auto& piece : part.parts_) {
    if (auto* text = std::get_if<std::string>(&piece)) {
      tail().append(*text);
    } else {
      parts_.push_back(std::move(piece));
    }
  }
  size_ += part.size_;
  return *this;
}

TUTTI_INLINE ProtoMessage& ProtoMessage::bytes(int field, const at::Tensor& tensor) {
  key(field, 2);
  varint(tensor.nbytes());
  parts_.emplace_back(tensor);
  size_ += tensor.nbytes();
  return *this;
}

TUTTI_INLINE std::string_view memory_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

TUTTI_INLINE std::vector<std::string_view> ProtoMessage::pieces() const {
  std::vector<std::string_view> out;
  for (const auto& part : parts_) {
    const auto* text = std::get_if<std::string>(&part);
    out.push_back(text != nullptr ? std::string_view(*text)
                                  : memory_of(std::get<at::Tensor>(part)));
  }
  return out;
}

TUTTI_INLINE std::int64_t onnx_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return 1;
    case at::kByte:
      return 2;
    case at::kChar:
      return 3;
    case at::kShort:
      return 5;
    case at::kInt:
      return 6;
    case at::kLong:
      return 7;
    case at::kBool:
      return 9;
    case at::kHalf:
      return 10;
    case at::kDouble:
      return 11;
    case at::kBFloat16:
      return 16;
    default:
      TUTTI_CHECK_VALUE(false, "export_onnx: a tensor is ", at::toString(type),
                        ", expected float32, float16, bfloat16, float64, integers or bool");
  }
}

TUTTI_INLINE ProtoMessage tensor_message(const std::string& name, const at::Tensor& tensor) {
  ProtoMessage out;
  for (const std::int64_t size : tensor.sizes()) {
    out.number(1, size);
  }
  out.number(2, onnx_type(tensor.scalar_type()));
  if (!name.empty()) {
    out.text(8, name);
  }
  return out;
}

TUTTI_INLINE ProtoMessage attribute_message(const std::string& name, const OnnxAttribute& value) {
  ProtoMessage out;
  out.text(1, name);
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    out.number(3, *number).number(20, 2);
  } else if (const auto* real = std::get_if<double>(&value)) {
    out.real(2, static_cast<float>(*real)).number(20, 1);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    out.text(4, *text).number(20, 3);
  } else if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    for (const std::int64_t each : *list) {
      out.number(8, each);
    }
    out.number(20, 7);
  } else {
    const auto& tensor = std::get<at::Tensor>(value);
    out.message(5, tensor_message("", tensor).bytes(9, tensor)).number(20, 4);
  }
  return out;
}

TUTTI_INLINE ProtoMessage node_message(const OnnxNode& node) {
  ProtoMessage out;
  for (const std::string& input : node.inputs) {
    out.text(1, input);
  }
  for (const std::string& output : node.outputs) {
    out.text(2, output);
  }
  out.text(3, node.name).text(4, node.op);
  for (const auto& [name, value] : node.attributes) {
    out.message(5, attribute_message(name, value));
  }
  return out;
}

TUTTI_INLINE ProtoMessage info_message(const OnnxTensorInfo& info) {
  ProtoMessage shape;
  for (const OnnxSize& size : info.sizes) {
    ProtoMessage dim;
    if (const auto* number = std::get_if<std::int64_t>(&size)) {
      dim.number(1, *number);
    } else {
      dim.text(2, std::get<std::string>(size));
    }
    shape.message(1, std::move(dim));
  }
  ProtoMessage tensor;
  tensor.number(1, onnx_type(info.type)).message(2, std::move(shape));
  ProtoMessage type;
  type.message(1, std::move(tensor));
  ProtoMessage out;
  out.text(1, info.name).message(2, std::move(type));
  return out;
}

TUTTI_INLINE std::uint64_t weight_bytes(const OnnxGraph& graph) {
  std::uint64_t out = 0;
  for (const auto& [name, tensor] : graph.weights) {
    out += tensor.nbytes();
  }
  return out;
}

TUTTI_INLINE ProtoMessage pair_message(std::string_view key, std::string_view value) {
  ProtoMessage out;
  out.text(1, key).text(2, value);
  return out;
}

TUTTI_INLINE ProtoMessage onnx_model(const OnnxGraph& graph, const std::string& data,
                                     std::vector<std::string_view>& external) {
  constexpr std::uint64_t least_external = 1024;
  ProtoMessage body;
  for (const OnnxNode& node : graph.nodes) {
    body.message(1, node_message(node));
  }
  body.text(2, "tutti");
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : graph.weights) {
    ProtoMessage out = tensor_message(name, tensor);
    if (data.empty() || tensor.nbytes() < least_external) {
      body.message(5, std::move(out.bytes(9, tensor)));
      continue;
    }
    out.message(13, pair_message("location", data));
    out.message(13, pair_message("offset", std::to_string(offset)));
    out.message(13, pair_message("length", std::to_string(tensor.nbytes())));
    body.message(5, std::move(out.number(14, 1)));
    external.push_back(memory_of(tensor));
    offset += tensor.nbytes();
  }
  for (const OnnxTensorInfo& info : graph.inputs) {
    body.message(11, info_message(info));
  }
  for (const OnnxTensorInfo& info : graph.outputs) {
    body.message(12, info_message(info));
  }
  ProtoMessage opset;
  opset.text(1, "").number(2, 18);
  ProtoMessage out;
  out.number(1, 8).text(2, "tutti").text(3, TUTTI_VERSION);
  out.message(7, std::move(body)).message(8, std::move(opset));
  return out;
}

}  // namespace tutti::models::detail

#endif
