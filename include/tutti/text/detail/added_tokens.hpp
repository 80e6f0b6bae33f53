// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/subwords.hpp>

#ifdef TUTTI_WITH_UTF8PROC

#include <variant>

// Tokens that are cut out of a text before anything else is done to it.

namespace tutti::text::detail {

struct AddedToken {
  std::int64_t id = 0;
  std::string content;
  std::u32string chars;  // the content, normalized where the text is
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;

  explicit AddedToken(const Json& token)
      : id(token.at("id").integer()),
        content(token.at("content").string()),
        chars(to_text(content).chars),
        single_word(flag(token, "single_word", false)),
        lstrip(flag(token, "lstrip", false)),
        rstrip(flag(token, "rstrip", false)),
        normalized(flag(token, "normalized", !flag(token, "special", false))),
        special(flag(token, "special", false)) {
    TUTTI_CHECK_VALUE(id >= 0 && id < (std::int64_t{1} << 31), "tokenizer: the added token \"",
                      content, "\" has the id ", id);
  }
};

/// Finds added tokens: the leftmost, of several there the longest.
///
/// White space that a token takes with it does not hide what stands in it: an added token there is
/// found as well, and what follows it is text again, as in the reference.
class AddedTokens {
 public:
  void add(AddedToken token) {
    if (token.chars.empty()) {
      return;
    }
    const char32_t first = token.chars[0];
    auto& there = by_first_[first];
    const auto longer = [&](const AddedToken& other) {
      return other.chars.size() < token.chars.size();
    };
    there.insert(std::find_if(there.begin(), there.end(), longer), std::move(token));
  }

  using Part = std::variant<Text, Token>;

  /// The tokens, and what lies between them.
  std::vector<Part> split(Text text) const {
    std::vector<Part> out;
    std::size_t done = 0;
    for (std::size_t at = 0; !by_first_.empty() && at < text.size();) {
      const AddedToken* found = find(text, at);
      if (found == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at;
      std::size_t end = at + found->chars.size();
      at = end;
      if (found->single_word && ((begin > 0 && is_word_character(text.chars[begin - 1])) ||
                                 (end < text.size() && is_word_character(text.chars[end])))) {
        continue;
      }
      while (found->lstrip && begin > done && is_white_space(text.chars[begin - 1])) {
        --begin;
      }
      while (found->rstrip && end < text.size() && is_white_space(text.chars[end])) {
        ++end;
      }
      if (found->lstrip) {
        begin = std::max(begin, done);
      }
      if (begin > done) {
        out.emplace_back(text.part(done, begin));
      }
      if (begin < end) {
        out.emplace_back(token_of(*found, text, begin, end));
      }
      done = end;
    }
    if (out.empty() && text.size() != 0) {
      out.emplace_back(std::move(text));
    } else if (done < text.size()) {
      out.emplace_back(text.part(done, text.size()));
    }
    return out;
  }

 private:
  static Token token_of(const AddedToken& token, const Text& text, std::size_t begin,
                        std::size_t end) {
    Token out{.id = token.id, .span = {text.spans[begin].begin, text.spans[end - 1].end}};
    for (std::size_t i = begin; i < end && is_blank(text.chars[i]); ++i) {
      ++out.blanks_ahead;
    }
    for (std::size_t i = end; i > begin && is_blank(text.chars[i - 1]); --i) {
      ++out.blanks_behind;
    }
    return out;
  }

  const AddedToken* find(const Text& text, std::size_t at) const {
    const auto there = by_first_.find(text.chars[at]);
    if (there == by_first_.end()) {
      return nullptr;
    }
    for (const AddedToken& token : there->second) {
      if (text.chars.compare(at, token.chars.size(), token.chars) == 0) {
        return &token;
      }
    }
    return nullptr;
  }

  std::unordered_map<char32_t, std::vector<AddedToken>> by_first_;
};

}  // namespace tutti::text::detail

#endif
