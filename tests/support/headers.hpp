// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <set>
#include <string>
#include <string_view>

/// Which headers of the library include which.
namespace headers {

/// The folder that `#include <tutti/...>` starts from.
inline const std::string root = TUTTI_SOURCE_DIR "/include/";

/// Adds a header, "tutti/trainer.hpp", and what it includes of tutti; with the bodies that stand
/// beside a header, x.inl.hpp, or without.
inline void reach(const std::string& header, std::set<std::string>& reached, bool bodies = true) {
  constexpr std::string_view start = "#include <tutti/";
  if ((!bodies && header.ends_with(".inl.hpp")) || !reached.insert(header).second) {
    return;
  }
  std::ifstream file(root + header);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) {
      reach(line.substr(10, line.find('>') - 10), reached, bodies);
    }
  }
}

}  // namespace headers
