// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/subwords.hpp>

#ifdef TUTTI_WITH_UTF8PROC

// From tokens to text.

namespace tutti::text::detail {

inline void replace_all(std::string& text, std::string_view what, std::string_view by) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = what.empty() ? std::string::npos : text.find(what); at != std::string::npos;
       at = text.find(what, from)) {
    out.append(text, from, at - from).append(by);
    from = at + what.size();
  }
  text = out.append(text, from);
}

/// The decoder of a tokenizer.json.
class Decoder {
 public:
  Decoder() = default;
  /// Throws c10::ValueError for a kind that is not known, by its name.
  explicit Decoder(const Json& step) {
    if (step.is_null()) {
      return;
    }
    const std::string& type = type_of(step, "the decoder");
    if (type == "Sequence") {
      for (const Json& inner : step.at("decoders").array()) {
        add(inner, type_of(inner, "the decoder"));
      }
    } else {
      add(step, type);
    }
  }

  std::string operator()(std::vector<std::string> tokens) const {
    if (steps_.empty()) {  // as Hugging Face's: the tokens with a space between them
      std::string out;
      for (const std::string& token : tokens) {
        out += out.empty() ? token : ' ' + token;
      }
      return out;
    }
    for (const auto& step : steps_) {
      step(tokens);
    }
    std::string out;
    for (const std::string& token : tokens) {
      out += token;
    }
    return out;
  }

 private:
  using Tokens = std::vector<std::string>;

  void add(const Json& step, const std::string& type) {
    if (type == "ByteLevel") {
      steps_.emplace_back([](Tokens& tokens) {
        std::string bytes;
        for (const std::string& token : tokens) {
          bytes += bytes_of_token(token);
        }
        tokens.assign(1, tutti::detail::utf8(bytes));
      });
    } else if (type == "WordPiece") {
      add_word_piece(step.at("prefix").string(), flag(step, "cleanup", true));
    } else if (type == "Replace") {
      const std::string what = to_utf8(pattern_string(step));
      steps_.emplace_back([what, by = step.at("content").string()](Tokens& tokens) {
        for (std::string& token : tokens) {
          replace_all(token, what, by);
        }
      });
    } else if (type == "ByteFallback") {
      steps_.emplace_back(bytes_to_text);
    } else if (type == "Fuse") {
      steps_.emplace_back([](Tokens& tokens) {
        for (std::size_t i = 1; i < tokens.size(); ++i) {
          tokens[0] += tokens[i];
        }
        tokens.resize(std::min<std::size_t>(tokens.size(), 1));
      });
    } else if (type == "Strip") {
      add_strip(step);
    } else if (type == "Metaspace") {
      add_metaspace(step);
    } else {
      refuse_step("decoder", type,
                  "ByteLevel, WordPiece, Replace, ByteFallback, Fuse, Strip, Metaspace or "
                  "Sequence");
    }
  }

  void add_word_piece(const std::string& prefix, bool cleanup) {
    steps_.emplace_back([prefix, cleanup](Tokens& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::string& token = tokens[i];
        if (i != 0) {
          token = token.starts_with(prefix) ? token.substr(prefix.size()) : ' ' + token;
        }
        if (!cleanup) {
          continue;
        }
        constexpr std::pair<std::string_view, std::string_view> cleaned[] = {
            {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
            {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
            {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
        for (const auto& [what, by] : cleaned) {
          replace_all(token, what, by);
        }
      }
    });
  }

  // Runs of <0x00> to <0xFF> as UTF-8; U+FFFD for each of a run that is none.
  static void bytes_to_text(Tokens& tokens) {
    Tokens out;
    std::string run;
    const auto flush = [&] {
      bool valid = true;
      for (std::size_t at = 0; valid && at < run.size();) {
        const Utf8Character next = decode_utf8(run, at);
        valid = next.ok;
        at += next.bytes;
      }
      if (valid && !run.empty()) {
        out.push_back(run);
      }
      for (std::size_t i = 0; !valid && i < run.size(); ++i) {
        out.emplace_back("\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = fallback_byte(token); byte >= 0) {
        run += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }

  static int fallback_byte(const std::string& token) {
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
      return -1;
    }
    const int high = digit(token[3]);
    const int low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }

  void add_strip(const Json& step) {
    steps_.emplace_back([content = step.at("content").string(), start = step.at("start").integer(),
                         stop = step.at("stop").integer()](Tokens& tokens) {
      for (std::string& token : tokens) {
        for (std::int64_t i = 0; i < start && !content.empty() && token.starts_with(content); ++i) {
          token.erase(0, content.size());
        }
        for (std::int64_t i = 0; i < stop && !content.empty() && token.ends_with(content); ++i) {
          token.resize(token.size() - content.size());
        }
      }
    });
  }

  void add_metaspace(const Json& step) {
    const Json* scheme = step.find("prepend_scheme");
    const bool prefixed =
        scheme != nullptr ? scheme->string() != "never" : flag(step, "add_prefix_space", true);
    steps_.emplace_back([mark = step.at("replacement").string(), prefixed](Tokens& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        replace_all(tokens[i], mark, i == 0 && prefixed ? "" : " ");
      }
    });
  }

  std::vector<std::function<void(Tokens&)>> steps_;
};

}  // namespace tutti::text::detail

#endif
