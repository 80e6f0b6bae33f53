// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

/// A regular expression in the language of Python's `re`, asked whether it matches a whole text, as
/// re.fullmatch() does: what files of Python select modules by.
///
/// Texts are bytes. Known are `. [] \d \w \s \b ^ $ |`, their opposites, groups with and without a
/// capture or a name, `* + ? {m,n}`, also lazy ones, and lookahead. Without captures every pair of
/// a place in the expression and one in the text is tried once, so that no expression takes more
/// time than its size times the text's.
/// Our own since `std::regex` and POSIX lack lookahead and `\d`, and the former takes seconds to
/// compile.
class Pattern {
 public:
  /// Throws c10::Error (ValueError) with the place for what is wrong or not known: lookbehind, back
  /// references, flags, possessive repeats, more than 10,000 steps.
  explicit Pattern(std::string_view text);

  /// The whole of `text` matches.
  [[nodiscard]] bool matches(std::string_view text) const { return run(0, 0, text); }

 private:
  enum class Op : std::uint8_t {
    one,
    split,
    jump,
    begin,
    end,
    word,
    not_word,
    look,
    accept,
    whole
  };

  struct Step {
    Op op = Op::one;
    bool negated = false;       // of look
    std::ptrdiff_t first = 1;   // where to go on, from here: jump and split
    std::ptrdiff_t second = 0;  // the other way of split, behind the end of look
    std::bitset<256> bytes{};   // of one
  };
  using Steps = std::vector<Step>;

  static constexpr std::size_t most_steps = 10'000;
  static constexpr int most_depth = 100;

  [[noreturn]] void fail(const std::string& why) const {
    raise<c10::ValueError>({__func__, __FILE__, __LINE__}, "the regular expression \"" + text_ +
                                                               "\" is refused at place " +
                                                               std::to_string(at_) + ": " + why);
  }

  [[nodiscard]] bool more() const { return at_ < text_.size(); }
  [[nodiscard]] char peek() const { return more() ? text_[at_] : '\0'; }
  bool take(std::string_view what) {
    const bool there = std::string_view(text_).substr(at_).starts_with(what);
    at_ += there ? what.size() : 0;
    return there;
  }

  Steps alternatives(int depth);
  Steps sequence(int depth);
  Steps atom(int depth);
  Steps group(int depth);
  Steps repeated(Steps what);
  bool bounds(std::size_t& least, std::size_t& most, bool& endless);
  std::bitset<256> set();
  std::bitset<256> escape_set(char c) const;
  unsigned char literal_escape(char c) const;
  Steps escape();

  void append(Steps& to, const Steps& what) const {
    if (to.size() + what.size() > most_steps) {
      fail("it is too large");
    }
    to.insert(to.end(), what.begin(), what.end());
  }
  static Steps one(const std::bitset<256>& bytes) { return {Step{.bytes = bytes}}; }
  static std::bitset<256> only(unsigned char c) { return std::bitset<256>().set(c); }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }

  bool run(std::size_t start, std::size_t at, std::string_view text) const;

  std::string text_;
  std::size_t at_ = 0;  // how far it is read
  Steps steps_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE Pattern::Pattern(std::string_view text) : text_(text) {
  steps_ = alternatives(0);
  if (more()) {
    fail("a ) without its (");
  }
  append(steps_, {Step{.op = Op::whole}});
}

TUTTI_INLINE Pattern::Steps Pattern::alternatives(int depth) {
  if (depth > most_depth) {
    fail("groups are nested too deep");
  }
  std::vector<Steps> all{sequence(depth)};
  while (take("|")) {
    all.push_back(sequence(depth));
  }
  Steps out = std::move(all.back());
  for (std::size_t i = all.size() - 1; i-- > 0;) {
    Steps both{Step{.op = Op::split, .second = static_cast<std::ptrdiff_t>(all[i].size()) + 2}};
    append(both, all[i]);
    append(both, {Step{.op = Op::jump, .first = static_cast<std::ptrdiff_t>(out.size()) + 1}});
    append(both, out);
    out = std::move(both);
  }
  return out;
}

TUTTI_INLINE Pattern::Steps Pattern::sequence(int depth) {
  Steps out;
  while (more() && peek() != '|' && peek() != ')') {
    append(out, repeated(atom(depth)));
  }
  return out;
}

TUTTI_INLINE Pattern::Steps Pattern::atom(int depth) {
  const char c = text_[at_++];
  switch (c) {
    case '(':
      return group(depth);
    case '[':
      return one(set());
    case '.':
      return one(~only('\n'));
    case '^':
      return {Step{.op = Op::begin}};
    case '$':
      return {Step{.op = Op::end}};
    case '\\':
      return escape();
    case '*':
    case '+':
    case '?':
      fail(std::string("nothing stands before the ") + c);
    default:
      return one(only(static_cast<unsigned char>(c)));
  }
}

TUTTI_INLINE Pattern::Steps Pattern::group(int depth) {
  bool looks = false;
  bool negated = false;
  if (take("?=") || take("?!")) {
    looks = true;
    negated = text_[at_ - 1] == '!';
  } else if (take("?P<")) {
    while (is_word(peek())) {
      ++at_;
    }
    if (!take(">")) {
      fail("a group's name is not ended by >");
    }
  } else if (!take("?:") && peek() == '?') {
    fail("a group of the kind (" + text_.substr(at_, 3) +
         " is not supported; use (...), (?:...), (?P<name>...), (?=...) or (?!...)");
  }
  Steps inner = alternatives(depth + 1);
  if (!take(")")) {
    fail("a ( without its )");
  }
  if (looks) {
    Steps out{Step{.op = Op::look,
                   .negated = negated,
                   .second = static_cast<std::ptrdiff_t>(inner.size()) + 2}};
    append(out, inner);
    append(out, {Step{.op = Op::accept}});
    return out;
  }
  return inner;
}

TUTTI_INLINE bool Pattern::bounds(std::size_t& least, std::size_t& most, bool& endless) {
  const std::size_t begin = at_++;
  const auto number = [this](std::size_t& value) {
    const std::size_t from = at_;
    for (value = 0; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + static_cast<std::size_t>(peek() - '0');
      if (value > most_steps) {
        fail("it is too large");
      }
    }
    return at_ > from;
  };
  const bool has_least = number(least);
  bool good = has_least;
  most = least;
  if (take(",")) {
    endless = !number(most);
    good = has_least || !endless;
  }
  if (!good || !take("}")) {  // a { that is just that
    at_ = begin;
    endless = false;
    return false;
  }
  if (!endless && most < least) {
    fail("the largest number of repeats is below the smallest");
  }
  return true;
}

TUTTI_INLINE Pattern::Steps Pattern::repeated(Steps what) {
  std::size_t least = 0;
  std::size_t most = 1;
  bool endless = false;
  if (take("*")) {
    endless = true;
  } else if (take("+")) {
    least = 1;
    endless = true;
  } else if (!take("?") && !(peek() == '{' && bounds(least, most, endless))) {
    return what;
  }
  static_cast<void>(take("?"));  // lazy: the same texts match
  if (peek() == '*' || peek() == '+' || peek() == '?') {
    fail("a repeat is repeated");
  }
  const auto size = static_cast<std::ptrdiff_t>(what.size());
  Steps out;
  for (std::size_t i = 0; i < least; ++i) {
    append(out, what);
  }
  if (endless) {
    append(out, {Step{.op = Op::split, .second = size + 2}});
    append(out, what);
    append(out, {Step{.op = Op::jump, .first = -size - 1}});
    return out;
  }
  for (std::size_t i = least; i < most; ++i) {
    append(out, {Step{.op = Op::split, .second = size + 1}});
    append(out, what);
  }
  return out;
}

TUTTI_INLINE std::bitset<256> Pattern::escape_set(char c) const {
  std::bitset<256> out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char byte = static_cast<char>(i);
    const bool digit = byte >= '0' && byte <= '9';
    const bool space = byte == ' ' || (byte >= '\t' && byte <= '\r');
    out[i] = c == 'd' || c == 'D' ? digit : c == 's' || c == 'S' ? space : is_word(byte);
  }
  return c == 'D' || c == 'S' || c == 'W' ? ~out : out;
}

TUTTI_INLINE unsigned char Pattern::literal_escape(char c) const {
  constexpr std::string_view names = "tnrfv";
  constexpr std::string_view bytes = "\t\n\r\f\v";
  if (const std::size_t known = names.find(c); known != std::string_view::npos) {
    return static_cast<unsigned char>(bytes[known]);
  }
  if (is_word(c) && c != '_') {
    fail(std::string("\\") + c + " is not supported");
  }
  return static_cast<unsigned char>(c);
}

TUTTI_INLINE Pattern::Steps Pattern::escape() {
  if (!more()) {
    fail("nothing follows the last \\");
  }
  const char c = text_[at_++];
  switch (c) {
    case 'A':
      return {Step{.op = Op::begin}};
    case 'Z':
      return {Step{.op = Op::end}};
    case 'b':
      return {Step{.op = Op::word}};
    case 'B':
      return {Step{.op = Op::not_word}};
    default:
      return one(std::string_view("dDwWsS").find(c) != std::string_view::npos
                     ? escape_set(c)
                     : only(literal_escape(c)));
  }
}

TUTTI_INLINE std::bitset<256> Pattern::set() {
  const bool negated = take("^");
  std::bitset<256> out;
  const auto one_of = [this](bool& is_set, std::bitset<256>& many) {
    const char c = text_[at_++];
    is_set = false;
    if (c != '\\') {
      return static_cast<unsigned char>(c);
    }
    if (!more()) {
      fail("a [ without its ]");
    }
    const char next = text_[at_++];
    if (std::string_view("dDwWsS").find(next) != std::string_view::npos) {
      is_set = true;
      many = escape_set(next);
      return static_cast<unsigned char>(0);
    }
    return next == 'b' ? static_cast<unsigned char>('\b') : literal_escape(next);
  };
  for (bool first = true; first || peek() != ']'; first = false) {
    if (!more()) {
      fail("a [ without its ]");
    }
    bool is_set = false;
    std::bitset<256> many;
    const unsigned char low = one_of(is_set, many);
    if (is_set) {
      out |= many;
      continue;
    }
    unsigned char high = low;
    if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
      ++at_;
      high = one_of(is_set, many);
      if (is_set || high < low) {
        fail("a range in [] has no end above its beginning");
      }
    }
    for (std::size_t i = low; i <= high; ++i) {
      out.set(i);
    }
  }
  ++at_;
  return negated ? ~out : out;
}

TUTTI_INLINE bool Pattern::run(std::size_t start, std::size_t at, std::string_view text) const {
  std::vector<bool> seen(steps_.size() * (text.size() + 1));
  std::vector<std::pair<std::size_t, std::size_t>> open{{start, at}};
  const auto go = [&](std::size_t step, std::ptrdiff_t by, std::size_t place) {
    open.emplace_back(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(step) + by), place);
  };
  while (!open.empty()) {
    const auto [i, place] = open.back();
    open.pop_back();
    const std::size_t pair = i * (text.size() + 1) + place;
    if (seen[pair]) {
      continue;
    }
    seen[pair] = true;
    const Step& step = steps_[i];
    const bool last = place == text.size();
    const bool at_word = (place > 0 && is_word(text[place - 1])) != (!last && is_word(text[place]));
    switch (step.op) {
      case Op::accept:
        return true;
      case Op::whole:
        if (last) {
          return true;
        }
        break;
      case Op::one:
        if (!last && step.bytes[static_cast<unsigned char>(text[place])]) {
          go(i, 1, place + 1);
        }
        break;
      case Op::split:
        go(i, step.second, place);
        go(i, 1, place);
        break;
      case Op::jump:
        go(i, step.first, place);
        break;
      case Op::look:
        if (run(i + 1, place, text) != step.negated) {
          go(i, step.second, place);
        }
        break;
      case Op::begin:
      case Op::end:
      case Op::word:
      case Op::not_word:
        if (step.op == Op::begin ? place == 0
            : step.op == Op::end ? last
                                 : at_word == (step.op == Op::word)) {
          go(i, 1, place);
        }
        break;
    }
  }
  return false;
}

}  // namespace tutti::detail

#endif
