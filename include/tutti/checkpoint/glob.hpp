// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/detail/glob.hpp>

namespace tutti::checkpoint {

/// Whether `text` matches a glob: `*` stands for any run of characters, slashes and dots included,
/// `?` for one character; everything else for itself.
inline bool glob_matches(std::string_view pattern, std::string_view text) {
  return ::tutti::detail::glob_matches(pattern, text);
}

namespace detail {

inline bool matches_any(const std::vector<std::string>& patterns, std::string_view text) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_matches(pattern, text); });
}

}  // namespace detail

}  // namespace tutti::checkpoint
