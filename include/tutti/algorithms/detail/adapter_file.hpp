// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace tutti::detail {

/// Tensors by their names in an adapter's file, with their shapes.
using AdapterShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// The weights of an adapter as PEFT writes them.
class AdapterFile {
 public:
  /// Throws c10::Error when the file is missing or damaged.
  explicit AdapterFile(const std::string& path) : path_(path), file_(path) {}

  /// Throws c10::Error that lists the differences when the file has other tensors than these, or of
  /// other shapes. Those of base layers' weights may be missing.
  void check(const AdapterShapes& wanted) const;

  /// Copies the tensors of the file that are among these, in the types that they have there.
  void read_into(const std::vector<checkpoint::NamedTensor>& tensors) const;

 private:
  static bool may_be_missing(const std::string& name) {
    return name.ends_with(".base_layer.weight") ||
           name.find(".modules_to_save.") != std::string::npos ||
           name.find(".original_module.") != std::string::npos;
  }

  std::string path_;
  checkpoint::SafetensorsFile file_;
};

inline AdapterShapes shapes_of(const std::vector<checkpoint::NamedTensor>& tensors) {
  AdapterShapes out;
  for (const auto& [name, tensor] : tensors) {
    out.emplace_back(name, tensor.sizes().vec());
  }
  return out;
}

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void AdapterFile::check(const AdapterShapes& wanted) const {
  constexpr std::size_t shown = 5;
  std::string text;
  const auto list = [&](const char* title, const std::vector<std::string>& names) {
    if (!names.empty()) {
      text += std::string("\n  ") + std::to_string(names.size()) + ' ' + title + ':';
      for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
        text += "\n    " + names[i];
      }
      text +=
          names.size() > shown ? "\n    and " + std::to_string(names.size() - shown) + " more" : "";
    }
  };
  std::map<std::string, at::IntArrayRef> left;
  for (const auto& layout : file_.tensors()) {
    left.emplace(layout.name, layout.shape);
  }
  std::vector<std::string> missing;
  std::vector<std::string> unlike;
  std::vector<std::string> unexpected;
  for (const auto& [name, shape] : wanted) {
    const auto found = left.find(name);
    if (found == left.end()) {
      if (!may_be_missing(name)) {
        missing.push_back(name);
      }
      continue;
    }
    if (found->second != at::IntArrayRef(shape)) {
      unlike.push_back(c10::str(name, ": ", found->second, " in the file, ", at::IntArrayRef(shape),
                                " in the model"));
    }
    left.erase(found);
  }
  for (const auto& [name, shape] : left) {
    unexpected.push_back(name);
  }
  list("missing (the model needs them, the file has not)", missing);
  list("unexpected (the file has them, the model has no place for them)", unexpected);
  list("of another shape", unlike);
  TUTTI_CHECK(text.empty(), "LoRA: the adapter '", path_, "' does not fit the model:", text,
              "\nWas it trained on another model?");
}

TUTTI_INLINE void AdapterFile::read_into(
    const std::vector<checkpoint::NamedTensor>& tensors) const {
  const c10::AutoGradMode no_grad(false);
  for (auto [name, tensor] : tensors) {
    if (file_.contains(name)) {
      tensor.copy_(file_.read(name));
    }
  }
}

}  // namespace tutti::detail

#endif
