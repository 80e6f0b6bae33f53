// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/utf8.hpp>

namespace tutti::detail {

/// What a JSON text may have at most, so that hostile input exhausts neither the stack nor the
/// memory: a value takes some hundred bytes, also where the text has two for it.
struct JsonLimits {
  int depth = 64;  ///< of arrays and objects inside one another
  std::size_t values = std::numeric_limits<std::size_t>::max();  ///< of all kinds
  bool not_finite = false;  ///< NaN, Infinity and -Infinity, as Python writes such numbers
  bool python = false;  ///< these, and what else Python writes and reads: the last of a repeated
                        ///< key's values counts, half a surrogate pair is U+FFFD
};

/// Recursive descent over one text.
class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits)
      : text_(text), limits_(limits), values_left_(limits.values) {}

  Json document();

  /// The text is an object: calls `visit(key, value)` for each of its members.
  template <class Visit>
  void members(Visit&& visit);

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("JSON: " + what + " at byte " + std::to_string(at_) + " of " +
                                std::to_string(text_.size()));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space();
  void expect(char c);
  bool word(std::string_view literal);
  Json value(int depth);
  Json array(int depth);
  Json object(int depth);
  void refuse_repeated(const Json::Object& members) const;
  static void keep_last(Json::Object& members);
  Json number();
  Json not_finite();
  std::size_t digits();
  Json convert(std::string_view digits, bool whole) const;
  std::string string();
  void escape(std::string& out);
  unsigned hex4();
  unsigned code_point();

  // One UTF-8 sequence of two to four bytes; overlong forms, surrogates and codes above 10FFFF are
  // refused.
  void multibyte(std::string& out);

  void nothing_follows();

  std::string_view text_;
  std::size_t at_ = 0;
  JsonLimits limits_;
  std::size_t values_left_;
};

template <class Visit>
void JsonParser::members(Visit&& visit) {
  skip_space();
  expect('{');
  skip_space();
  bool more = peek() != '}';
  while (more) {
    skip_space();
    std::string key = string();
    skip_space();
    expect(':');
    values_left_ = limits_.values;
    visit(std::move(key), value(1));
    skip_space();
    more = peek() == ',';
    at_ += more ? 1 : 0;
  }
  expect('}');
  nothing_follows();
}

/// The JSON value that `text` is.
///
/// Strict: no comments, no invalid UTF-8, nothing beyond the limits, and no NaN and no repeated
/// keys unless they have them. Throws std::invalid_argument with the place and the reason.
inline Json parse_json(std::string_view text, const JsonLimits& limits = {}) {
  return JsonParser(text, limits).document();
}

/// Calls `visit(std::string key, Json value)` for each member of the object that `text` is, in
/// order, and keeps none of them, so that a large object needs the memory of one member.
///
/// limits: those of each member, whose own depth is 1. Strict as parse_json(), but for repeated
/// keys of this one object, which the caller sees. Throws as parse_json() does.
template <class Visit>
void each_json_member(std::string_view text, const JsonLimits& limits, Visit&& visit) {
  JsonParser(text, limits).members(visit);
}

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE Json JsonParser::document() {
  Json value = this->value(0);
  nothing_follows();
  return value;
}

TUTTI_INLINE void JsonParser::nothing_follows() {
  skip_space();
  if (at_ != text_.size()) {
    fail("something follows the value");
  }
}

TUTTI_INLINE void JsonParser::skip_space() {
  while (at_ < text_.size() &&
         std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
    ++at_;
  }
}

TUTTI_INLINE void JsonParser::expect(char c) {
  if (at_ >= text_.size() || text_[at_] != c) {
    fail(std::string("expected '") + c + "'");
  }
  ++at_;
}

TUTTI_INLINE bool JsonParser::word(std::string_view literal) {
  if (text_.substr(at_, literal.size()) != literal) {
    return false;
  }
  at_ += literal.size();
  return true;
}

TUTTI_INLINE Json JsonParser::value(int depth) {
  if (depth > limits_.depth) {
    fail("nested deeper than " + std::to_string(limits_.depth));
  }
  if (values_left_ == 0) {
    fail("more than " + std::to_string(limits_.values) + " values");
  }
  --values_left_;
  skip_space();
  switch (peek()) {
    case '{':
      return object(depth);
    case '[':
      return array(depth);
    case '"':
      return string();
    case 't':
      return word("true") ? Json(true) : (fail("unknown word"), Json());
    case 'f':
      return word("false") ? Json(false) : (fail("unknown word"), Json());
    case 'n':
      return word("null") ? Json() : (fail("unknown word"), Json());
    default:
      return limits_.not_finite || limits_.python ? not_finite() : number();
  }
}

TUTTI_INLINE Json JsonParser::not_finite() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return word("NaN")         ? Json::number_as(std::numeric_limits<double>::quiet_NaN(), "NaN")
         : word("Infinity")  ? Json::number_as(infinity, "Infinity")
         : word("-Infinity") ? Json::number_as(-infinity, "-Infinity")
                             : number();
}

TUTTI_INLINE Json JsonParser::array(int depth) {
  Json::Array elements;
  expect('[');
  skip_space();
  if (peek() == ']') {
    ++at_;
    return elements;
  }
  while (true) {
    elements.push_back(value(depth + 1));
    skip_space();
    if (peek() == ']') {
      ++at_;
      return elements;
    }
    expect(',');
  }
}

TUTTI_INLINE Json JsonParser::object(int depth) {
  Json::Object members;
  expect('{');
  skip_space();
  if (peek() == '}') {
    ++at_;
    return members;
  }
  while (true) {
    skip_space();
    std::string key = string();
    skip_space();
    expect(':');
    members.emplace_back(std::move(key), value(depth + 1));
    skip_space();
    if (peek() == '}') {
      ++at_;
      limits_.python ? keep_last(members) : refuse_repeated(members);
      return members;
    }
    expect(',');
  }
}

TUTTI_INLINE void JsonParser::refuse_repeated(const Json::Object& members) const {
  std::vector<std::string_view> keys;
  keys.reserve(members.size());
  for (const auto& member : members) {
    keys.push_back(member.first);
  }
  std::sort(keys.begin(), keys.end());
  const auto repeated = std::adjacent_find(keys.begin(), keys.end());
  if (repeated != keys.end()) {
    fail("the key '" + std::string(*repeated) + "' occurs twice in the object that ends");
  }
}

// As in a Python dict: at the place of the first.
TUTTI_INLINE void JsonParser::keep_last(Json::Object& members) {
  std::unordered_map<std::string, std::size_t> places;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto [place, is_new] = places.try_emplace(members[i].first, kept);
    if (place->second != i) {
      members[place->second] = std::move(members[i]);
    }
    kept += is_new ? 1 : 0;
  }
  members.resize(kept);
}

TUTTI_INLINE Json JsonParser::number() {
  const std::size_t begin = at_;
  if (peek() == '-') {
    ++at_;
  }
  const bool leading_zero = peek() == '0';
  if (digits() == 0) {
    fail("expected a value");
  }
  if (leading_zero && at_ - begin > (text_[begin] == '-' ? 2U : 1U)) {
    fail("a number has a leading zero");
  }
  bool whole = true;
  if (peek() == '.') {
    ++at_;
    whole = false;
    if (digits() == 0) {
      fail("expected a digit");
    }
  }
  if (peek() == 'e' || peek() == 'E') {
    ++at_;
    whole = false;
    if (peek() == '+' || peek() == '-') {
      ++at_;
    }
    if (digits() == 0) {
      fail("expected a digit");
    }
  }
  return convert(text_.substr(begin, at_ - begin), whole);
}

TUTTI_INLINE std::size_t JsonParser::digits() {
  const std::size_t begin = at_;
  while (peek() >= '0' && peek() <= '9') {
    ++at_;
  }
  return at_ - begin;
}

TUTTI_INLINE Json JsonParser::convert(std::string_view digits, bool whole) const {
  const char* const first = digits.data();
  const char* const last = first + digits.size();
  if (whole) {
    std::int64_t integer = 0;
    if (std::from_chars(first, last, integer).ec == std::errc()) {
      return integer;
    }
  }
  double number = 0.0;
  if (std::from_chars(first, last, number).ec != std::errc() || !std::isfinite(number)) {
    fail("a number is out of range");
  }
  if (whole) {
    return Json::number_as(number, digits);
  }
  return number;
}

TUTTI_INLINE std::string JsonParser::string() {
  expect('"');
  std::string out;
  while (true) {
    if (at_ >= text_.size()) {
      fail("the text ends inside a string");
    }
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') {
      ++at_;
      return out;
    }
    if (c < 0x20) {
      fail("a control character inside a string");
    }
    if (c == '\\') {
      ++at_;
      escape(out);
    } else if (c < 0x80) {
      out += text_[at_++];
    } else {
      multibyte(out);
    }
  }
}

TUTTI_INLINE void JsonParser::escape(std::string& out) {
  constexpr std::string_view from = "\"\\/bfnrt";
  constexpr std::string_view to = "\"\\/\b\f\n\r\t";
  const char c = peek();
  const auto found = c == '\0' ? std::string_view::npos : from.find(c);
  if (found != std::string_view::npos) {
    ++at_;
    out += to[found];
  } else if (c == 'u') {
    ++at_;
    append_utf8(out, code_point());
  } else {
    fail("unknown escape");
  }
}

TUTTI_INLINE unsigned JsonParser::hex4() {
  unsigned code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (digits.size() != 4 || read.ec != std::errc() || read.ptr != digits.data() + 4) {
    fail("expected four hexadecimal digits");
  }
  at_ += 4;
  return code;
}

TUTTI_INLINE unsigned JsonParser::code_point() {
  const unsigned high = hex4();
  if (high < 0xD800 || high > 0xDFFF) {
    return high;
  }
  const std::size_t behind = at_;
  if (high <= 0xDBFF && word("\\u")) {
    const unsigned low = hex4();
    if (low >= 0xDC00 && low <= 0xDFFF) {
      return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
  }
  if (!limits_.python) {
    fail("half a surrogate pair");
  }
  at_ = behind;
  return 0xFFFD;
}

TUTTI_INLINE void JsonParser::multibyte(std::string& out) {
  const Utf8Character next = decode_utf8(text_, at_);
  if (!next.ok) {
    fail("a string is not UTF-8");
  }
  out += text_.substr(at_, next.bytes);
  at_ += next.bytes;
}

}  // namespace tutti::detail

#endif
