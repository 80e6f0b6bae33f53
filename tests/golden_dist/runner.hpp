// SPDX-License-Identifier: Apache-2.0
#pragma once

// The runner of the reference cases for distribution (README.md of this folder). It walks a folder,
// finds every case and hands it to what its kind is registered with; runner.cpp prints the table.
// The other files of this folder register their kinds:
//
//     void run_zero(const golden_dist::Case& c) {
//       const auto reference = c.tensors();
//       c.close("losses", losses_of(...), reference.at("sgd.losses"), 1e-12);
//     }
//     const bool registered = golden_dist::register_kind("zero", run_zero);

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "support/case_table.hpp"

namespace golden_dist {

using Tensors = std::map<std::string, at::Tensor>;

/// Thrown by a handler for a case that needs what tutti does not have; the text is the reason.
using Skipped = tutti_test::SkippedCase;

/// Thrown by a handler for a case that it does not know what to do with.
using Unmapped = tutti_test::UnmappedCase;

/// All tensors of a safetensors file by name.
Tensors read_tensors(const std::filesystem::path& path);

/// One case: a file, or a folder beside a `full.safetensors`.
class Case : public tutti_test::Complaints {
 public:
  Case(std::string kind_, std::string name_, std::filesystem::path path_);

  std::string kind;            ///< The first folder below the root.
  std::string name;            ///< "zero/a.safetensors": the path below the root.
  std::filesystem::path path;  ///< Of the file or the folder.

  /// The tensors of a case that is a safetensors file.
  [[nodiscard]] Tensors tensors() const { return read_tensors(path); }
};

using Handler = std::function<void(const Case&)>;

/// Every case of that kind is run by `handler`. Returns true, for a variable at namespace scope.
bool register_kind(const std::string& kind, Handler handler);

}  // namespace golden_dist
