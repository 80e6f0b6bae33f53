// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the examples for texts get them from.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace example {

/// All of a file. Throws c10::Error where it cannot be read.
inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "the text ", path, " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// tutti's guides, one text each, in the order of their paths.
inline std::vector<std::string> guides() {
  std::vector<std::filesystem::path> pages;
  const std::filesystem::path docs = std::filesystem::path(TUTTI_EXAMPLES_DATA) / "../../docs";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(docs)) {
    if (entry.path().extension() == ".md") {
      pages.push_back(entry.path());
    }
  }
  std::sort(pages.begin(), pages.end());
  std::vector<std::string> texts;
  for (const auto& page : pages) {
    texts.push_back(read_text(page));
  }
  return texts;
}

}  // namespace example
