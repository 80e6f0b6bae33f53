// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::detail {

// A protocol buffer message while it is written: the wire format's three kinds of fields that
// TensorBoard's messages have. Fields of proto3 with their default value may be left out.
// Source: protobuf.dev/programming-guides/encoding
class Message {
 public:
  // int32, int64, uint64, bool and enums.
  Message& number(unsigned field, std::int64_t value) {
    varint(field << 3);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(unsigned field, double value) {
    varint(field << 3 | 1);
    fixed(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(unsigned field, float value) {
    varint(field << 3 | 5);
    fixed(std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  // string (which must be UTF-8), bytes, and the bytes of a message.
  Message& bytes(unsigned field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(unsigned field, const Message& value) { return bytes(field, value.bytes_); }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(value | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }
  template <std::unsigned_integral U>
  void fixed(U value) {  // little-endian
    for (std::size_t i = 0; i < sizeof value; ++i) {
      bytes_ += static_cast<char>(value >> (8 * i));
    }
  }

  std::string bytes_;
};

}  // namespace tutti::detail
