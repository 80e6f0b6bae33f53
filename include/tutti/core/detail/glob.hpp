// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace tutti::detail {

/// Whether `text` matches a glob: `*` stands for any run of characters, slashes and dots included,
/// `?` for one character; everything else for itself.
inline bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the last star, and what it has swallowed up to
  std::size_t swallowed = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] == text[t] && pattern[p] != '*'))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++swallowed;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace tutti::detail
