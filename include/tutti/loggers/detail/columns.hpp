// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/detail/utf8.hpp>

namespace tutti::detail {

// A text whose every character is seen where it stands: what is no UTF-8, and control characters,
// which would move a terminal's cursor, become '?'.
std::string printable(std::string_view text);

// Columns that a terminal needs for a printable text: two for a wide character, none for one that
// joins the one before it.
int columns(std::string_view text);

// The beginning of a printable text that fits into `width` columns.
std::string_view cut(std::string_view text, int width);

// A printable text in lines of at most `width` columns, broken at blanks; all but the first begin
// with `indent` blanks. A word that is longer stays whole, so that a path can be copied. The first
// line stands behind `indent` columns, too. width: 0: no limit.
std::string folded(std::string_view text, int width, int indent);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

// Source: Unicode 15, EastAsianWidth.txt (W and F) and the combining marks of common scripts.
TUTTI_INLINE int columns_of(char32_t code) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  static constexpr Range none[] = {
      {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x0610, 0x061A}, {0x064B, 0x065F},
      {0x093C, 0x093C}, {0x0941, 0x0948}, {0x0E31, 0x0E31}, {0x0E34, 0x0E3A}, {0x0E47, 0x0E4E},
      {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0x3099, 0x309A},
      {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}};
  static constexpr Range wide[] = {
      {0x1100, 0x115F},   {0x231A, 0x231B},  {0x23E9, 0x23EC},   {0x2614, 0x2615},
      {0x2648, 0x2653},   {0x26A1, 0x26A1},  {0x2705, 0x2705},   {0x274C, 0x274C},
      {0x2E80, 0x303E},   {0x3041, 0x33FF},  {0x3400, 0x4DBF},   {0x4E00, 0xA4CF},
      {0xA960, 0xA97C},   {0xAC00, 0xD7A3},  {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
      {0xFF01, 0xFF60},   {0xFFE0, 0xFFE6},  {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF},
      {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};
  const auto in = [code](const auto& ranges) {
    return std::any_of(std::begin(ranges), std::end(ranges), [code](const Range& range) {
      return code >= range.first && code <= range.last;
    });
  };
  return in(none) ? 0 : in(wide) ? 2 : 1;
}

TUTTI_INLINE std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    const bool control = next.code < 0x20 || (next.code >= 0x7F && next.code < 0xA0);
    out += control || !next.ok ? std::string_view("?") : text.substr(0, next.bytes);
    text.remove_prefix(next.bytes);
  }
  return out;
}

TUTTI_INLINE int columns(std::string_view text) {
  int total = 0;
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    total += columns_of(next.code);
    text.remove_prefix(next.bytes);
  }
  return total;
}

TUTTI_INLINE std::string_view cut(std::string_view text, int width) {
  std::size_t end = 0;
  for (int used = 0; end < text.size();) {
    const Utf8Character next = decode_utf8(text, end);
    used += columns_of(next.code);
    if (used > width) {
      break;
    }
    end += next.bytes;
  }
  return text.substr(0, end);
}

TUTTI_INLINE std::string folded(std::string_view text, int width, int indent) {
  std::string out;
  int used = indent;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const bool begins = used == indent;
    if (!begins && width > 0 && used + 1 + columns(word) > width) {
      out += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
      used = indent;
    } else if (!begins) {
      out += ' ';
      ++used;
    }
    out += word;
    used += columns(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace tutti::detail

#endif
