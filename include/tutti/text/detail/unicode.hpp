// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/detail/utf8.hpp>

#ifdef TUTTI_WITH_UTF8PROC
#include <utf8proc.h>

#include <tutti/core/detail/throw.hpp>
#endif

// Text as code points that know where they come from, and what Unicode says of them.

namespace tutti::text::detail {

/// A half-open range of the code points of the text that was given.
struct Span {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Code points, each with the place in the original text that it was made of.
struct Text {
  std::u32string chars;
  std::vector<Span> spans;  // as many

  std::size_t size() const { return chars.size(); }
  void push_back(char32_t c, Span span) {
    chars.push_back(c);
    spans.push_back(span);
  }
  Text part(std::size_t begin, std::size_t end) const {
    return {chars.substr(begin, end - begin),
            {spans.begin() + static_cast<std::ptrdiff_t>(begin),
             spans.begin() + static_cast<std::ptrdiff_t>(end)}};
  }
};

using tutti::detail::append_utf8;
using tutti::detail::decode_utf8;
using tutti::detail::Utf8Character;

inline std::string to_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) {
    append_utf8(out, c);
  }
  return out;
}

#ifdef TUTTI_WITH_UTF8PROC

/// Throws c10::ValueError when the bytes are no UTF-8, with the place.
inline Text to_text(std::string_view bytes) {
  Text out;
  out.chars.reserve(bytes.size());
  out.spans.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Character next = decode_utf8(bytes, at);
    TUTTI_CHECK_VALUE(next.ok, "tokenizer: the text is no UTF-8 at byte ", at, " of ", bytes.size(),
                      "; convert it to UTF-8");
    const auto place = static_cast<std::uint32_t>(out.size());
    out.push_back(next.code, {place, place + 1});
    at += next.bytes;
  }
  return out;
}

inline bool is_white_space(char32_t c) {  // Unicode's White_Space
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

using Range = std::pair<char32_t, char32_t>;  // both ends included

/// ranges: ascending.
template <std::size_t N>
bool is_in(const Range (&ranges)[N], char32_t c) {
  const auto* const behind =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](char32_t code, const Range& range) { return code < range.first; });
  return behind != std::begin(ranges) && c <= (behind - 1)->second;
}

inline utf8proc_category_t category_of(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

enum class Class : std::uint8_t { other, letter, number, space };

/// A letter (L*), a number (N*), white space, or none of them; by Unicode 16, which the reference
/// has, also where libutf8proc is older.
inline Class class_of(char32_t c) {
  constexpr Range letters_of_16[] = {
      {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
      {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
      {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
      {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
      {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
      {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
  constexpr Range numbers_of_16[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                     {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                     {0x1E5F1, 0x1E5FA}};
  const auto look = [&](char32_t code) {
    if (is_white_space(code)) {
      return Class::space;
    }
    const auto category = category_of(code);
    if (category == UTF8PROC_CATEGORY_CN) {
      return is_in(letters_of_16, code)   ? Class::letter
             : is_in(numbers_of_16, code) ? Class::number
                                          : Class::other;
    }
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO   ? Class::letter
           : category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO ? Class::number
                                                                                  : Class::other;
  };
  static const auto first = [&] {
    std::array<Class, 0x800> classes{};
    for (char32_t code = 0; code < classes.size(); ++code) {
      classes[code] = look(code);
    }
    return classes;
  }();
  return c < first.size() ? first[c] : look(c);
}

/// A character of a word as regular expressions have them (\w): letters, marks, decimal and letter
/// numbers, connectors, joiners, and the circled letters.
inline bool is_word_character(char32_t c) {
  constexpr Range others[] = {{0x200C, 0x200D},
                              {0x24B6, 0x24E9},
                              {0x1F130, 0x1F149},
                              {0x1F150, 0x1F169},
                              {0x1F170, 0x1F189}};
  const auto category = category_of(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || is_in(others, c) ||
         (category == UTF8PROC_CATEGORY_CN && class_of(c) != Class::other);
}

/// A character's category as BERT's normalizer knows it: the reference has the tables of Unicode 8
/// for these, and there is no telling which of its characters a newer table would change.
inline utf8proc_category_t bert_category(char32_t c) {
  constexpr std::pair<char32_t, char32_t> newer[] = {
      // marks, signs and controls among them
      {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x8E2},     {0x9FD, 0x9FE},
      {0xA76, 0xA76},     {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC3C},
      {0xC77, 0xC77},     {0xC84, 0xC84},     {0xD00, 0xD00},     {0xD3B, 0xD3C},
      {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x1886},
      {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E5D},
      {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},
      {0x10D24, 0x10F89}, {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111CF, 0x111CF},
      {0x1123E, 0x11241}, {0x1133B, 0x1133B}, {0x11438, 0x1145E}, {0x11660, 0x1166C},
      {0x116B9, 0x116B9}, {0x1182F, 0x11FFF}, {0x12FF1, 0x13455}, {0x16E97, 0x16F4F},
      {0x16FE2, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF}, {0x1E944, 0x1E95F}};
  if (is_in(newer, c)) {
    return UTF8PROC_CATEGORY_CN;
  }
  return c == 0x1734                   ? UTF8PROC_CATEGORY_MN
         : c == 0x166D || c == 0x111C9 ? UTF8PROC_CATEGORY_PO
                                       : category_of(c);
}

/// Punctuation as BERT means it: all of ASCII that is no letter, number or space, and P*.
inline bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  }
  const auto category = bert_category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/// How a mark is ordered among others; 0: it is none. Marks newer than the reference's tables of
/// Unicode 9 are none there.
inline int combining_class(char32_t c) {
  constexpr Range newer[] = {{0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FE, 0x9FE},
                             {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
                             {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
                             {0xA82C, 0xA82C},   {0x10D24, 0x10F85}, {0x11070, 0x11070},
                             {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x11A99},
                             {0x11D42, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E2EF}};
  if (c < 0x300 || is_in(newer, c)) {
    return 0;
  }
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

/// A mark (M*) by the tables of Unicode 9, which the reference has where it strips accents from
/// text that is no BERT's.
inline bool is_mark(char32_t c) {
  constexpr Range newer[] = {
      {0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},
      {0xB55, 0xB55},     {0xC04, 0xC3C},     {0xCF3, 0xD00},     {0xD3B, 0xD3C},
      {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},
      {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},
      {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
      {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF},
      {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x11A99},
      {0x11D31, 0x13455}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1},
      {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E4EF}};
  const auto category = category_of(c);
  return (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME &&
          !is_in(newer, c)) ||
         c == 0x1CF2 || c == 0x1CF3;
}

/// Characters that a normalization made, each with the characters of the original that it takes:
/// 1, more for a composed one, 0 for one that stands beside its first part.
struct Normalized {
  std::u32string chars;
  std::vector<std::size_t> taken;
};

/// The characters in the places of the original, one after the other; one that is made of several
/// has the place of the first.
inline Text placed(const Text& original, const Normalized& normalized) {
  Text out;
  std::size_t at = 0;
  for (std::size_t i = 0; i < normalized.chars.size(); ++i) {
    const std::size_t taken = normalized.taken[i];
    const std::size_t place = taken == 0 && at > 0 ? at - 1 : at;
    out.push_back(normalized.chars[i], original.spans[std::min(place, original.size() - 1)]);
    at += taken;
  }
  return out;
}

inline Normalized decomposed(const std::u32string& text) {
  Normalized out;
  for (const char32_t c : text) {
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                         static_cast<utf8proc_ssize_t>(parts.size()),
                                         UTF8PROC_DECOMPOSE, &boundary);
    // U+11938 is newer than the reference's tables.
    if (c == 0x11938 || count <= 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
      parts[0] = static_cast<utf8proc_int32_t>(c);
      count = 1;
    }
    for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
      out.chars.push_back(static_cast<char32_t>(parts[k]));
      out.taken.push_back(k == 0 ? 1 : 0);
    }
  }
  std::vector<std::pair<char32_t, std::size_t>> marks;
  for (std::size_t i = 0; i < out.chars.size();) {  // marks in canonical order
    marks.clear();
    std::size_t end = i;
    for (; end < out.chars.size() && combining_class(out.chars[end]) != 0; ++end) {
      marks.emplace_back(out.chars[end], out.taken[end]);
    }
    std::stable_sort(marks.begin(), marks.end(), [](const auto& a, const auto& b) {
      return combining_class(a.first) < combining_class(b.first);
    });
    for (const auto& [c, taken] : marks) {
      out.chars[i] = c;
      out.taken[i++] = taken;
    }
    i = std::max(end, i) + (marks.empty() ? 1 : 0);
  }
  return out;
}

/// Canonical decomposition (NFD).
inline Text nfd(const Text& text) {
  return placed(text, decomposed(text.chars));
}

/// The character that two compose to (NFC), or 0.
inline char32_t composed(char32_t starter, char32_t next) {
  std::array<utf8proc_int32_t, 3> pair{static_cast<utf8proc_int32_t>(starter),
                                       static_cast<utf8proc_int32_t>(next), 0};
  const auto length = utf8proc_normalize_utf32(
      pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  return length == 1 && pair[0] != 0x11938 ? static_cast<char32_t>(pair[0]) : 0;
}

/// Canonical composition (NFC).
inline Text nfc(const Text& text) {
  if (std::all_of(text.chars.begin(), text.chars.end(), [](char32_t c) { return c < 0x300; })) {
    return text;
  }
  const Normalized parts = decomposed(text.chars);
  Normalized out;
  std::size_t starter = 0;
  bool has_starter = false;
  int last = 0;
  for (std::size_t i = 0; i < parts.chars.size(); ++i) {
    const int rank = combining_class(parts.chars[i]);
    if (has_starter && (last < rank || last == 0) &&
        (rank != 0 || starter + 1 == out.chars.size())) {
      if (const char32_t one = composed(out.chars[starter], parts.chars[i]); one != 0) {
        out.chars[starter] = one;
        out.taken[starter] += parts.taken[i];
        continue;
      }
    }
    if (rank == 0) {
      starter = out.chars.size();
      has_starter = true;
    }
    last = rank;
    out.chars.push_back(parts.chars[i]);
    out.taken.push_back(parts.taken[i]);
  }
  return placed(text, out);
}

/// A code point in lower case, by Unicode 17, which the reference has, also where libutf8proc is
/// older.
inline char32_t lower_of(char32_t c) {
  constexpr std::pair<char32_t, char32_t> newer[] = {
      {0x1C89, 0x1C8A}, {0xA7CB, 0x264},  {0xA7CC, 0xA7CD}, {0xA7CE, 0xA7CF},
      {0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D5}, {0xA7DA, 0xA7DB}, {0xA7DC, 0x19B}};
  if (c >= 0x10D50 && c <= 0x10D65) {
    return c + 0x20;
  }
  if (c >= 0x16EA0 && c <= 0x16EB8) {
    return c + 0x1B;
  }
  const auto* const found = std::find_if(std::begin(newer), std::end(newer),
                                         [c](const auto& pair) { return pair.first == c; });
  return found != std::end(newer)
             ? found->second
             : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

/// Each code point in lower case, without looking at its neighbours.
inline Text lower(const Text& text) {
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text.chars[i];
    if (c == 0x130) {  // I with a dot: the one that becomes two
      out.push_back('i', text.spans[i]);
      out.push_back(0x307, text.spans[i]);
    } else {
      out.push_back(lower_of(c), text.spans[i]);
    }
  }
  return out;
}

#endif

}  // namespace tutti::text::detail
