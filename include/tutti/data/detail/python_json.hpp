// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

// JSON as Python's json module writes and reads it.

namespace tutti::data::detail {

// Checks a text and builds nothing. Beyond JSON, as there: NaN, Infinity, -Infinity, halves of
// surrogate pairs as \uD800, numbers of any size, and keys that occur twice. Bytes above 127 within
// strings are passed over: they are checked as UTF-8 elsewhere.
class PythonJson {
 public:
  static constexpr int deepest = 1000;  // arrays and objects inside one another; Python's recursion

  explicit PythonJson(std::string_view text) : text_(text) {}

  // Throws std::invalid_argument with the place and the reason.
  void check() {
    value(0);
    skip_space();
    if (at_ != text_.size()) {
      fail("something follows the value");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("JSON: " + what + " at byte " + std::to_string(at_) + " of " +
                                std::to_string(text_.size()));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') {
      ++at_;
    }
  }

  bool word(std::string_view literal) {
    const bool found = text_.substr(at_, literal.size()) == literal;
    at_ += found ? literal.size() : 0;
    return found;
  }

  void value(int depth) {
    if (depth > deepest) {
      fail("nested deeper than " + std::to_string(deepest));
    }
    skip_space();
    if (peek() == '{') {
      list(depth, '}');
    } else if (peek() == '[') {
      list(depth, ']');
    } else if (peek() == '"') {
      string();
    } else if (!word("null") && !word("true") && !word("false") && !word("NaN") &&
               !word("Infinity") && !word("-Infinity")) {
      number();
    }
  }

  // An array, or an object, whose values have keys.
  void list(int depth, char close) {
    ++at_;
    skip_space();
    if (peek() == close) {
      ++at_;
      return;
    }
    while (true) {
      if (close == '}') {
        skip_space();
        string();
        skip_space();
        expect(':');
      }
      value(depth + 1);
      skip_space();
      if (peek() == close) {
        ++at_;
        return;
      }
      expect(',');
    }
  }

  void expect(char c) {
    if (peek() != c) {
      fail(std::string("expected '") + c + "'");
    }
    ++at_;
  }

  void string() {
    expect('"');
    while (peek() != '"') {
      if (at_ >= text_.size()) {
        fail("the text ends inside a string");
      }
      if (static_cast<unsigned char>(peek()) < 0x20) {
        fail("a control character inside a string");
      }
      if (text_[at_++] == '\\') {
        escape();
      }
    }
    ++at_;
  }

  void escape() {
    constexpr std::string_view known = "\"\\/bfnrtu";
    if (at_ >= text_.size() || known.find(text_[at_]) == std::string_view::npos) {
      fail("unknown escape");
    }
    if (text_[at_++] == 'u') {
      for (int i = 0; i < 4; ++i, ++at_) {
        constexpr std::string_view digits = "0123456789abcdefABCDEF";
        if (at_ >= text_.size() || digits.find(text_[at_]) == std::string_view::npos) {
          fail("expected four hexadecimal digits");
        }
      }
    }
  }

  void number() {
    at_ += peek() == '-' ? 1 : 0;
    if (peek() == '0') {
      ++at_;  // no digit follows it: "01" is refused as two values
    } else {
      digits("expected a value");
    }
    if (peek() == '.') {
      ++at_;
      digits("expected a digit");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      at_ += peek() == '+' || peek() == '-' ? 1 : 0;
      digits("expected a digit");
    }
  }

  void digits(const char* otherwise) {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') {
      ++at_;
    }
    if (at_ == begin) {
      fail(otherwise);
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace tutti::data::detail
