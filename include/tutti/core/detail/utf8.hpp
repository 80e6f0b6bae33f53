// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 (RFC 3629): no surrogates, no form that is longer than it must be.

namespace tutti::detail {

// What begins at some place of bytes: a character; or, where `ok` is false, bytes that belong to
// nothing, the longest beginning of a character, at least one.
struct Utf8Character {
  char32_t code = 0xFFFD;
  std::size_t bytes = 1;
  bool ok = false;
};

inline Utf8Character decode_utf8(std::string_view bytes, std::size_t at = 0) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) {
    return {first, 1, true};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {};
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  std::uint32_t code = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    unsigned least = 0x80;
    unsigned most = 0xBF;
    if (i == 1) {
      least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : least;
      most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : most;
    }
    if (at + i == bytes.size() || byte(at + i) < least || byte(at + i) > most) {
      return {0xFFFD, i, false};
    }
    code = code << 6 | (byte(at + i) & 0x3FU);
  }
  return {code, length, true};
}

inline void append_utf8(std::string& out, char32_t c) {
  const auto code = static_cast<std::uint32_t>(c);
  const auto tail = [code](int shift) {
    return static_cast<char>(0x80 | ((code >> shift) & 0x3F));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xC0 | code >> 6), tail(0)};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  } else {
    out += {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
  }
}

// The text with U+FFFD for what is not UTF-8: what formats that demand it are given. Generated text
// may end within a character.
inline std::string utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    out += next.ok ? text.substr(0, next.bytes) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(next.bytes);
  }
  return out;
}

// At most `most` bytes of it, whole characters.
inline std::string_view utf8_cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) {
    return text;
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) {
    --most;
  }
  return text.substr(0, most);
}

}  // namespace tutti::detail
