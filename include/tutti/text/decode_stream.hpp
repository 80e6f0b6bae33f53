// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/text/tokenizer.hpp>

namespace tutti::text {

#ifdef TUTTI_WITH_UTF8PROC

/// Decodes tokens one by one, as they are generated: text comes out as soon as it is whole.
///
///   DecodeStream stream(tokenizer);
///   for (id : generated) { std::printf("%s", stream.step(id).c_str()); }
///   std::printf("%s", stream.finish().c_str());
class DecodeStream {
 public:
  explicit DecodeStream(Tokenizer tokenizer, bool skip_special_tokens = true)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  /// The text that has become whole with this token; empty while bytes of a character lack.
  /// Throws c10::IndexError for an id that is no token.
  std::string step(std::int64_t id) {
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_, skip_special_tokens_);
    return text.ends_with("\xEF\xBF\xBD") ? std::string() : take(text);
  }

  /// What is left at the end: U+FFFD where the bytes of a character never came.
  std::string finish() {
    return ids_.empty() ? std::string() : take(tokenizer_.decode(ids_, skip_special_tokens_));
  }

 private:
  // Tokens are decoded behind those of the text before, since the first of a text loses its space.
  std::string take(const std::string& text) {
    if (before_.starts_with(text)) {
      return {};
    }
    // A byte may spoil those before it that came out as text: these stay out, and what differs
    // follows them.
    std::size_t same = 0;
    for (; same < std::min(text.size(), before_.size()) && text[same] == before_[same]; ++same) {
    }
    while (same < text.size() && (text[same] & 0xC0) == 0x80) {
      --same;
    }
    std::string out = text.substr(same);
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(old_));
    old_ = ids_.size();
    before_ = tokenizer_.decode(ids_, skip_special_tokens_);
    return out;
  }

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::vector<std::int64_t> ids_;  // of the text that came out last, and the new ones
  std::size_t old_ = 0;            // those of the text that came out last
  std::string before_;             // their text
};

#endif

}  // namespace tutti::text
