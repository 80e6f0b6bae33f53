// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace tutti::detail {

/// "a/b/c" as "a" and "b/c".
inline std::pair<std::string_view, std::string_view> split_path(std::string_view path) {
  const auto slash = path.find('/');
  return slash == std::string_view::npos ? std::pair(path, std::string_view())
                                         : std::pair(path.substr(0, slash), path.substr(slash + 1));
}

/// How many names a path has; none when it is empty.
inline std::size_t count_names(std::string_view path) {
  return path.empty() ? 0 : static_cast<std::size_t>(std::count(path.begin(), path.end(), '/')) + 1;
}

}  // namespace tutti::detail
