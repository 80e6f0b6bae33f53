// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/unicode.hpp>

#ifdef TUTTI_WITH_UTF8PROC

#include <functional>

#include <tutti/core/detail/json.hpp>

// The steps of a tokenizer.json ahead of its model: normalizers, and how a text is cut into pieces.

namespace tutti::text::detail {

using tutti::detail::Json;

/// "NFC" of {"type": "NFC"}; what the file calls this step is `what`.
/// Throws c10::ValueError when the object has no type.
inline const std::string& type_of(const Json& step, const char* what) {
  const Json* type = step.find("type");
  TUTTI_CHECK_VALUE(type != nullptr && type->is_string(), "tokenizer: ", what,
                    " has no \"type\", expected the name of one");
  return type->string();
}

[[noreturn]] inline void refuse_step(const char* what, const std::string& type, const char* known) {
  ::tutti::detail::raise<c10::ValueError>({__func__, __FILE__, __LINE__},
                                          std::string("tokenizer: the ") + what + " \"" + type +
                                              "\" is not supported, expected " + known);
}

/// The value of a key that decides something: refused unless it is what is supported.
inline void expect_flag(const Json& step, const char* key, bool expected, const char* what) {
  const Json* found = step.find(key);
  TUTTI_CHECK_VALUE(found == nullptr || found->is_null() || found->boolean() == expected,
                    "tokenizer: ", what, " has \"", key, "\": ", expected ? "false" : "true",
                    ", expected ", expected ? "true" : "false");
}

inline bool flag(const Json& step, const char* key, bool otherwise) {
  const Json* found = step.find(key);
  return found == nullptr || found->is_null() ? otherwise : found->boolean();
}

/// A pattern {"String": text} of a Replace; a regular expression is refused.
inline std::u32string pattern_string(const Json& step) {
  const Json* text = step.at("pattern").find("String");
  TUTTI_CHECK_VALUE(text != nullptr, "tokenizer: a Replace has a pattern that is no \"String\"");
  std::u32string found = to_text(text->string()).chars;
  TUTTI_CHECK_VALUE(!found.empty(), "tokenizer: a Replace has an empty pattern");
  return found;
}

inline bool is_chinese(char32_t c) {
  constexpr std::pair<char32_t, char32_t> ranges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

inline Text replaced(const Text& text, const std::u32string& pattern, const std::u32string& by) {
  Text out;
  for (std::size_t at = 0; at < text.size();) {
    if (text.chars.compare(at, pattern.size(), pattern) == 0) {
      for (const char32_t c : by) {  // it has the place of the last character
        out.push_back(c, text.spans[at + pattern.size() - 1]);
      }
      at += pattern.size();
    } else {
      out.push_back(text.chars[at], text.spans[at]);
      ++at;
    }
  }
  return out;
}

// Where there is text.
inline Text prepended(const Text& text, const std::u32string& prefix) {
  Text out;
  for (std::size_t i = 0; i < prefix.size() && text.size() != 0; ++i) {
    out.push_back(prefix[i], text.spans[0]);
  }
  out.chars += text.chars;
  out.spans.insert(out.spans.end(), text.spans.begin(), text.spans.end());
  return out;
}

/// One normalizer, or several in turn.
class Normalizer {
 public:
  Normalizer() = default;
  /// Throws c10::ValueError for a kind that is not known, by its name.
  explicit Normalizer(const Json& step) { add(step); }

  bool empty() const { return steps_.empty(); }
  Text operator()(Text text) const {
    for (const auto& step : steps_) {
      text = step(text);
    }
    return text;
  }

 private:
  void add(const Json& step) {
    if (step.is_null()) {
      return;
    }
    const std::string& type = type_of(step, "the normalizer");
    if (type == "Sequence") {
      for (const Json& inner : step.at("normalizers").array()) {
        add(inner);
      }
    } else if (type == "NFC") {
      steps_.emplace_back(nfc);
    } else if (type == "NFD") {
      steps_.emplace_back(nfd);
    } else if (type == "Lowercase") {
      steps_.emplace_back(lower);
    } else if (type == "StripAccents") {
      steps_.emplace_back(
          [](const Text& text) { return kept(text, [](char32_t c) { return !is_mark(c); }); });
    } else if (type == "Prepend") {
      steps_.emplace_back([prefix = to_text(step.at("prepend").string()).chars](const Text& text) {
        return prepended(text, prefix);
      });
    } else if (type == "Replace") {
      steps_.emplace_back([pattern = pattern_string(step),
                           by = to_text(step.at("content").string()).chars](const Text& text) {
        return replaced(text, pattern, by);
      });
    } else if (type == "BertNormalizer") {
      add_bert(step);
    } else {
      refuse_step(
          "normalizer", type,
          "NFC, NFD, Lowercase, StripAccents, Prepend, Replace, BertNormalizer or Sequence");
    }
  }

  void add_bert(const Json& step) {
    const bool lowercase = flag(step, "lowercase", true);
    if (flag(step, "clean_text", true)) {
      steps_.emplace_back(cleaned);
    }
    if (flag(step, "handle_chinese_chars", true)) {
      steps_.emplace_back(chinese_apart);
    }
    if (flag(step, "strip_accents", lowercase)) {
      steps_.emplace_back([](const Text& text) { return without_marks(nfd(text)); });
    }
    if (lowercase) {
      steps_.emplace_back(lower);
    }
  }

  static Text without_marks(const Text& text) {
    return kept(text, [](char32_t c) { return bert_category(c) != UTF8PROC_CATEGORY_MN; });
  }

  static Text cleaned(const Text& text) {
    Text out = kept(text, [](char32_t c) {
      const auto category = bert_category(c);
      const bool control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                           category == UTF8PROC_CATEGORY_CO;
      return c == '\t' || c == '\n' || c == '\r' || (c != 0 && c != 0xFFFD && !control);
    });
    std::replace_if(out.chars.begin(), out.chars.end(), is_white_space, U' ');
    return out;
  }

  static Text chinese_apart(const Text& text) {
    Text out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool apart = is_chinese(text.chars[i]);
      if (apart) {
        out.push_back(' ', text.spans[i]);
      }
      out.push_back(text.chars[i], text.spans[i]);
      if (apart) {
        out.push_back(' ', text.spans[i]);
      }
    }
    return out;
  }

  template <class Keep>
  static Text kept(const Text& text, Keep&& keep) {
    Text out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (keep(text.chars[i])) {
        out.push_back(text.chars[i], text.spans[i]);
      }
    }
    return out;
  }

  std::vector<std::function<Text(const Text&)>> steps_;
};

/// Where a piece ends that begins at `at`: one of the regular expressions that language models have
/// in their files, which are known by their text.
using Pattern = std::size_t (*)(std::u32string_view text, std::size_t at);

inline std::size_t run_of(std::u32string_view text, std::size_t at, Class kind,
                          std::size_t most = std::u32string_view::npos) {
  const std::size_t end = most < text.size() - at ? at + most : text.size();
  while (at < end && class_of(text[at]) == kind) {
    ++at;
  }
  return at;
}

/// `'s|'t|'re|'ve|'m|'ll|'d`: where it ends, or `at` when it does not stand there.
inline std::size_t contraction(std::u32string_view text, std::size_t at, bool any_case) {
  if (text[at] != '\'') {
    return at;
  }
  const auto letter = [&](std::size_t i) -> char32_t {
    if (i >= text.size()) {
      return 0;
    }
    const char32_t c = text[i];
    return !any_case ? c : c == 0x17F ? U's' : c >= 'A' && c <= 'Z' ? c + 32 : c;
  };
  const char32_t first = letter(at + 1);
  const char32_t second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return at + 2;
  }
  const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                   (first == 'l' && second == 'l');
  return two ? at + 3 : at;
}

/// `\s+(?!\S)|\s+` of a run of white space [at, end).
inline std::size_t spaces(std::u32string_view text, std::size_t at, std::size_t end) {
  return end == text.size() || end - at == 1 ? end : end - 1;
}

/// GPT-2's.
inline std::size_t gpt2_piece(std::u32string_view text, std::size_t at) {
  if (const std::size_t end = contraction(text, at, false); end != at) {
    return end;
  }
  const std::size_t begin = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  const Class kind = class_of(text[begin]);
  if (kind != Class::space) {
    return run_of(text, begin, kind);
  }
  return spaces(text, at, run_of(text, at, Class::space));
}

/// Llama 3's and Qwen 2's, which differ in how many digits make a piece.
template <std::size_t Digits>
std::size_t llama3_piece(std::u32string_view text, std::size_t at) {
  if (const std::size_t end = contraction(text, at, true); end != at) {
    return end;
  }
  const char32_t c = text[at];
  const Class kind = class_of(c);
  const bool line_end = c == '\r' || c == '\n';
  if (kind == Class::letter) {
    return run_of(text, at, Class::letter);
  }
  if (kind != Class::number && !line_end && at + 1 < text.size() &&
      class_of(text[at + 1]) == Class::letter) {
    return run_of(text, at + 1, Class::letter);
  }
  if (kind == Class::number) {
    return run_of(text, at, Class::number, Digits);
  }
  const std::size_t begin = c == ' ' && at + 1 < text.size() ? at + 1 : at;
  if (class_of(text[begin]) == Class::other) {
    std::size_t end = run_of(text, begin, Class::other);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) {
      ++end;
    }
    return end;
  }
  const std::size_t end = run_of(text, at, Class::space);
  for (std::size_t last = end; last > at; --last) {  // \s*[\r\n]+
    if (text[last - 1] == '\r' || text[last - 1] == '\n') {
      return last;
    }
  }
  return spaces(text, at, end);
}

/// A number as Digits knows it, by Unicode 17.
inline bool is_digit(char32_t c) {
  return class_of(c) == Class::number || (c >= 0x11DE0 && c <= 0x11DE9) ||
         (c >= 0x16FF4 && c <= 0x16FF6);
}

/// A run of digits, or of what is none; each digit by itself where they are `individual`.
template <bool individual>
std::size_t digits_piece(std::u32string_view text, std::size_t at) {
  const bool digit = is_digit(text[at++]);
  while (at < text.size() && is_digit(text[at]) == digit && !(digit && individual)) {
    ++at;
  }
  return at;
}

/// Throws c10::ValueError with the pattern when it is none of those that are known.
inline Pattern known_pattern(const std::string& regex) {
  static constexpr std::string_view gpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  static constexpr std::string_view begin =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  static constexpr std::string_view end = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (regex == gpt2) {
    return gpt2_piece;
  }
  if (regex.size() > begin.size() + end.size() && regex.starts_with(begin) &&
      regex.ends_with(end)) {
    const std::string digits = regex.substr(begin.size(), regex.size() - begin.size() - end.size());
    if (digits == R"(\p{N}{1,3})") {
      return llama3_piece<3>;
    }
    if (digits == R"(\p{N})") {
      return llama3_piece<1>;
    }
  }
  ::tutti::detail::raise<c10::ValueError>(
      {__func__, __FILE__, __LINE__},
      "tokenizer: texts are split by the regular expression \"" + regex +
          "\", which is not supported; those of GPT-2, Llama 3 and Qwen 2 are");
}

/// Cuts a text into the pieces that the model sees one by one.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Throws c10::ValueError for a kind that is not known, by its name.
  explicit PreTokenizer(const Json& step) { add(step); }

  /// The model sees bytes, not code points.
  bool bytes() const { return bytes_; }

  /// Calls `visit(piece)`, a Text with its begin and end, for each piece that is not empty.
  template <class Visit>
  void operator()(Text text, Visit&& visit) const {
    if (text.size() == 0) {
      return;
    }
    const bool last = words_ || metaspace_ || prefix_space_ || byte_pattern_ != nullptr;
    if (pattern_ == nullptr) {
      by_last_step(std::move(text), visit);
    } else if (!last) {
      by_bytes(std::move(text), pattern_, visit);
    } else {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = pattern_(text.chars, at);
        by_last_step(text.part(at, end), visit);
        at = end;
      }
    }
  }

 private:
  template <class Visit>
  void by_last_step(Text text, Visit&& visit) const {
    if (words_) {
      by_words(text, visit);
    } else if (metaspace_) {
      by_metaspace(text, visit);
    } else {
      by_bytes(std::move(text), byte_pattern_, visit);
    }
  }

  void add(const Json& step) {
    if (step.is_null()) {
      return;
    }
    const std::string& type = type_of(step, "the pre_tokenizer");
    TUTTI_CHECK_VALUE(!bytes_ && !words_ && !metaspace_, "tokenizer: the pre_tokenizer \"", type,
                      "\" stands behind one that must be the last");
    if (type == "Sequence") {
      for (const Json& inner : step.at("pretokenizers").array()) {
        add(inner);
      }
    } else if (type == "ByteLevel") {
      bytes_ = true;
      prefix_space_ = flag(step, "add_prefix_space", true);
      if (flag(step, "use_regex", true)) {
        byte_pattern_ = gpt2_piece;
      }
    } else if (type == "Split") {
      TUTTI_CHECK_VALUE(step.at("behavior").string() == "Isolated",
                        "tokenizer: a Split has the behavior \"", step.at("behavior").string(),
                        "\", expected \"Isolated\"");
      expect_flag(step, "invert", false, "a Split");
      const Json* regex = step.at("pattern").find("Regex");
      TUTTI_CHECK_VALUE(regex != nullptr, "tokenizer: a Split has no pattern \"Regex\"");
      set_pattern(known_pattern(regex->string()), type);
    } else if (type == "Digits") {
      const bool individual = flag(step, "individual_digits", false);
      set_pattern(individual ? digits_piece<true> : digits_piece<false>, type);
    } else if (type == "BertPreTokenizer") {
      words_ = true;
    } else if (type == "Metaspace") {
      add_metaspace(step);
    } else {
      refuse_step("pre_tokenizer", type,
                  "ByteLevel, Split, Digits, BertPreTokenizer, Metaspace or Sequence");
    }
  }

  void set_pattern(Pattern pattern, const std::string& type) {
    TUTTI_CHECK_VALUE(pattern_ == nullptr, "tokenizer: the pre_tokenizer \"", type,
                      "\" stands behind another that splits, expected one Split or Digits");
    pattern_ = pattern;
  }

  void add_metaspace(const Json& step) {
    metaspace_ = true;
    const std::u32string mark = to_text(step.at("replacement").string()).chars;
    TUTTI_CHECK_VALUE(mark.size() == 1, "tokenizer: a Metaspace has the replacement \"",
                      step.at("replacement").string(), "\", expected one character");
    mark_ = mark[0];
    const Json* scheme = step.find("prepend_scheme");
    const std::string prepend = scheme != nullptr                      ? scheme->string()
                                : flag(step, "add_prefix_space", true) ? "always"
                                                                       : "never";
    TUTTI_CHECK_VALUE(prepend == "always" || prepend == "first" || prepend == "never",
                      "tokenizer: a Metaspace has the prepend_scheme \"", prepend,
                      "\", expected \"always\", \"first\" or \"never\"");
    always_ = prepend == "always";
    first_ = prepend == "first";
    metaspace_split_ = flag(step, "split", true);
  }

  template <class Visit>
  void by_bytes(Text text, Pattern pattern, Visit&& visit) const {
    if (prefix_space_ && text.chars[0] != ' ') {
      text.chars.insert(text.chars.begin(), ' ');
      text.spans.insert(text.spans.begin(), text.spans[0]);
    }
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = pattern != nullptr ? pattern(text.chars, at) : text.size();
      visit(text, at, end);
      at = end;
    }
  }

  template <class Visit>
  static void by_words(const Text& text, Visit&& visit) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      const bool end = i == text.size() || is_white_space(text.chars[i]);
      if (!end && !is_punctuation(text.chars[i])) {
        continue;
      }
      if (i > begin) {
        visit(text, begin, i);
      }
      if (!end) {
        visit(text, i, i + 1);
      }
      begin = i + 1;
    }
  }

  template <class Visit>
  void by_metaspace(Text& text, Visit&& visit) const {
    std::replace(text.chars.begin(), text.chars.end(), U' ', mark_);
    if (text.chars[0] != mark_ && (always_ || (first_ && text.spans[0].begin == 0))) {
      text.chars.insert(text.chars.begin(), mark_);
      text.spans.insert(text.spans.begin(), text.spans[0]);
    }
    std::size_t begin = 0;
    for (std::size_t i = 1; i <= text.size(); ++i) {
      if (i == text.size() || (metaspace_split_ && text.chars[i] == mark_)) {
        visit(text, begin, i);
        begin = i;
      }
    }
  }

  bool bytes_ = false;
  bool words_ = false;
  bool prefix_space_ = false;
  bool metaspace_ = false;
  bool metaspace_split_ = true;
  bool always_ = false;
  bool first_ = false;
  char32_t mark_ = 0x2581;
  Pattern pattern_ = nullptr;       // of a Split or Digits
  Pattern byte_pattern_ = nullptr;  // of a ByteLevel
};

}  // namespace tutti::text::detail

#endif
