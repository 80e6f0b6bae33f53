// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/utf8.hpp>

namespace tutti::sweep::detail {

using tutti::detail::Json;

/// Reads the part of TOML 1.0 that files of options need: `name = value` lines and `[table]`s of
/// one level; texts in quotes, whole and other finite numbers, true, false, arrays and inline
/// tables. No dates, no dotted names, no texts of several lines.
class TomlReader {
 public:
  explicit TomlReader(std::string_view text) : text_(text) {}

  Json document() {
    for (std::size_t at = 0; at < text_.size();) {
      const tutti::detail::Utf8Character next = tutti::detail::decode_utf8(text_, at);
      refuse_unless(next.ok, "it is not UTF-8");
      at += next.bytes;
    }
    Json::Object root;
    Json::Object table;
    std::string table_name;
    const auto close_table = [&] {
      if (!table_name.empty()) {
        root.emplace_back(std::exchange(table_name, {}), std::exchange(table, {}));
      }
    };
    for (skip_lines(); at_ < text_.size(); skip_lines()) {
      if (peek() == '[') {
        close_table();
        ++at_;
        skip_blanks();
        table_name = key(root);
        skip_blanks();
        expect(']', "a table's name is [name], without dots");
      } else {
        Json::Object& into = table_name.empty() ? root : table;
        member(into, 0);
      }
      end_of_line();
    }
    close_table();
    return root;
  }

 private:
  static constexpr int most_depth = 16;

  [[noreturn]] void fail(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n');
    throw std::invalid_argument("line " + std::to_string(line) + ": " + what);
  }
  void refuse_unless(bool holds, const std::string& what) const {
    if (!holds) {
      fail(what);
    }
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void expect(char c, const char* otherwise) {
    refuse_unless(peek() == c, otherwise);
    ++at_;
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') {
      ++at_;
    }
  }

  // Blanks, ends of lines and comments.
  void skip_lines() {
    for (skip_blanks(); at_ < text_.size(); skip_blanks()) {
      if (peek() == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (peek() == '\n' || text_.substr(at_, 2) == "\r\n") {
        ++at_;
      } else {
        return;
      }
    }
  }

  void end_of_line() {
    skip_blanks();
    const bool over =
        at_ >= text_.size() || peek() == '\n' || peek() == '#' || text_.substr(at_, 2) == "\r\n";
    refuse_unless(over, "something follows the value; a line has one name and one value");
  }

  static bool is_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  }

  // A name that `object` does not have yet.
  std::string key(const Json::Object& object) {
    std::string name;
    if (peek() == '"' || peek() == '\'') {
      name = text();
    } else {
      while (is_bare(peek())) {
        name += text_[at_++];
      }
      refuse_unless(!name.empty(), "expected a name, as in name = value");
      refuse_unless(peek() != '.', "the name " + name +
                                       " is followed by a dot; put a name with "
                                       "dots into quotes");
    }
    const bool known = std::any_of(object.begin(), object.end(),
                                   [&](const Json::Member& one) { return one.first == name; });
    refuse_unless(!known, name + " is there twice");
    return name;
  }

  void member(Json::Object& into, int depth) {
    std::string name = key(into);
    skip_blanks();
    refuse_unless(peek() == '=', "expected = behind " + name + ", as in name = value");
    ++at_;
    skip_blanks();
    Json value = this->value(depth);
    into.emplace_back(std::move(name), std::move(value));
  }

  Json value(int depth) {
    refuse_unless(depth < most_depth,
                  "values are nested deeper than " + std::to_string(most_depth));
    switch (peek()) {
      case '"':
      case '\'':
        return text();
      case '[':
        return array(depth);
      case '{':
        return inline_table(depth);
      default:
        return word();
    }
  }

  Json array(int depth) {
    Json::Array values;
    ++at_;
    for (skip_lines(); peek() != ']'; skip_lines()) {
      values.push_back(value(depth + 1));
      skip_lines();
      refuse_unless(peek() == ',' || peek() == ']', "expected , or ] in a list");
      at_ += peek() == ',' ? 1U : 0U;
    }
    ++at_;
    return values;
  }

  Json inline_table(int depth) {
    Json::Object members;
    ++at_;
    skip_blanks();
    while (peek() != '}') {
      member(members, depth + 1);
      skip_blanks();
      refuse_unless(peek() == ',' || peek() == '}', "expected , or } in a table");
      at_ += peek() == ',' ? 1U : 0U;
      skip_blanks();
    }
    ++at_;
    return members;
  }

  std::string text() {
    const char quote = text_[at_++];
    refuse_unless(text_.substr(at_, 2) != std::string(2, quote),
                  "a text of several lines is not understood; write it on one");
    std::string out;
    while (peek() != quote) {
      const auto c = static_cast<unsigned char>(peek());
      refuse_unless(at_ < text_.size() && c != '\n' && c != '\r', "a text has no end on its line");
      refuse_unless((c >= 0x20 && c != 0x7F) || c == '\t', "a control character inside a text");
      ++at_;
      if (c == '\\' && quote == '"') {
        escape(out);
      } else {
        out += static_cast<char>(c);
      }
    }
    ++at_;
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view from = "\"\\bfnrt";
    constexpr std::string_view to = "\"\\\b\f\n\r\t";
    const char c = peek();
    ++at_;
    const auto found = c == '\0' ? std::string_view::npos : from.find(c);
    if (found != std::string_view::npos) {
      out += to[found];
      return;
    }
    refuse_unless(c == 'u' || c == 'U', "an unknown escape; write \\\\ for a backslash");
    const std::string_view digits = text_.substr(std::min(at_, text_.size()), c == 'u' ? 4 : 8);
    std::uint32_t code = 0;
    const char* const end = digits.data() + digits.size();
    const auto [read, error] = std::from_chars(digits.data(), end, code, 16);
    refuse_unless(digits.size() == (c == 'u' ? 4U : 8U) && error == std::errc() && read == end &&
                      code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF),
                  "\\u needs four hexadecimal digits of a character, \\U eight");
    tutti::detail::append_utf8(out, code);
    at_ += digits.size();
  }

  // true, false or a number.
  Json word() {
    const std::size_t begin = at_;
    while (is_bare(peek()) || peek() == '.' || peek() == '+') {
      ++at_;
    }
    const std::string word(text_.substr(begin, at_ - begin));
    if (word == "true" || word == "false") {
      return word == "true";
    }
    std::string digits;
    bool good = !word.empty();
    for (std::size_t i = 0; i < word.size(); ++i) {
      const auto is_digit = [&](std::size_t at) {
        return at < word.size() && word[at] >= '0' && word[at] <= '9';
      };
      if (word[i] == '_') {  // between digits, as in 1_000
        good = good && i > 0 && is_digit(i - 1) && is_digit(i + 1);
      } else if (word[i] != '+' || i > 0) {
        digits += word[i];
      } else {
        good = good && is_digit(1);
      }
    }
    const char* const end = digits.data() + digits.size();
    std::int64_t whole = 0;
    if (const auto [read, error] = std::from_chars(digits.data(), end, whole);
        good && error == std::errc() && read == end) {
      return whole;
    }
    double number = 0;
    const auto [read, error] = std::from_chars(digits.data(), end, number);
    good = good && error == std::errc() && read == end && std::isfinite(number);
    refuse_unless(good,
                  "expected a number, true, false, a text in quotes, a [list] or a {table}; "
                  "got " +
                      (word.empty() ? "nothing of it"
                                    : word + ", put a text into "
                                             "quotes"));
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// The value of such a file: an object, with its tables as objects in it.
/// Throws std::invalid_argument that begins with the line.
inline Json parse_toml(std::string_view text) {
  return TomlReader(text).document();
}

}  // namespace tutti::sweep::detail
