// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh64.hpp>

namespace tutti::checkpoint {

/// How load_module() treats what does not agree.
struct ModuleLoadOptions {
  bool strict = true;  ///< Refuse the whole load when anything differs; else take what fits.
  bool convert_dtype = false;  ///< Convert element types; else another type counts as a difference.
  std::string
      strip_prefix{};  ///< Removed from the archive's names that begin so: "module." of DDP files.
  std::vector<std::string>
      ignore{};                 ///< Globs of names left out on both sides: "fc.*" for a new head.
  std::string ignore_prefix{};  ///< Put before names when they are compared with these globs.
  /// Sizes of a tensor of the module in the file, of which it has a part; none: its own.
  std::function<at::IntArrayRef(const at::Tensor&)> sizes_in_file{};
};

/// What load_module() took and what not; names as PyTorch writes them.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     ///< In the model, not in the archive.
  std::vector<std::string> unexpected;  ///< In the archive, not in the model.
  std::vector<std::string> mismatched;  ///< In both with another shape or type; with the reason.
  std::vector<std::string> ignored;     ///< Left out by ModuleLoadOptions::ignore, in either.

  /// Nothing differs but what was ignored.
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }

  /// The differences in words, the first `shown` of each kind; empty when complete().
  std::string text(std::size_t shown = 10) const;
};

/// Parameters and buffers of a module under their PyTorch names, parameters first; undefined ones
/// left out.
///
/// A tensor that is registered under several names (tied weights) appears under each.
std::vector<std::pair<std::string, at::Tensor>> module_tensors(const torch::nn::Module& module);

/// XXH64 of the names, types, shapes and bytes of some parameters and buffers, in that order, as
/// sixteen hexadecimal digits. Throws c10::Error for a name that the module lacks.
std::string checksum(const torch::nn::Module& module, const std::vector<std::string>& names);

/// Puts parameters and buffers into the archive, detached but not copied.
void save_module(const torch::nn::Module& module, Archive& archive);

namespace detail {

/// The tensors of an archive by name, after prefix and ignore rules.
std::map<std::string, at::Tensor> named_tensors(const Archive& archive,
                                                const ModuleLoadOptions& options,
                                                LoadReport& report);

/// Why `saved` cannot go into `own`; empty when it can.
std::string difference(const at::Tensor& own, const at::Tensor& saved,
                       const ModuleLoadOptions& options);

}  // namespace detail

/// What load_module() would copy, for those who read values only when they are wanted: appends the
/// module's tensor and the archive's to `copies`. Tensors of the archive may be on the meta device;
/// the values of tied weights are then not compared. Returns and throws as load_module() does.
LoadReport match_module(const torch::nn::Module& module, const Archive& archive,
                        const ModuleLoadOptions& options,
                        std::vector<std::pair<at::Tensor, at::Tensor>>& copies);

/// Copies an archive's tensors into a module's parameters and buffers.
///
/// The module keeps its tensor objects, devices and memory formats, so optimizers and tied weights
/// go on working. Nothing is changed before everything is compared. Weights that are tied here may
/// be in the file under one of their names or under each, with equal values. Returns what was
/// loaded and what differs. Throws c10::Error that lists the differences when there are any and
/// options.strict is set.
LoadReport load_module(torch::nn::Module& module, const Archive& archive,
                       const ModuleLoadOptions& options = {});

}  // namespace tutti::checkpoint

#if TUTTI_BODIES

namespace tutti::checkpoint {

TUTTI_INLINE std::string LoadReport::text(std::size_t shown) const {
  std::ostringstream out;
  const auto list = [&](const char* title, const std::vector<std::string>& names) {
    if (names.empty()) {
      return;
    }
    out << "\n  " << names.size() << ' ' << title << ':';
    for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
      out << "\n    " << names[i];
    }
    if (names.size() > shown) {
      out << "\n    and " << names.size() - shown << " more";
    }
  };
  list("missing (the model has them, the file has not)", missing);
  list("unexpected (the file has them, the model has not)", unexpected);
  list("different", mismatched);
  return out.str();
}

TUTTI_INLINE std::vector<std::pair<std::string, at::Tensor>> module_tensors(
    const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      if (item.value().defined()) {
        out.emplace_back(item.key(), item.value());
      }
    }
  }
  return out;
}

TUTTI_INLINE void save_module(const torch::nn::Module& module, Archive& archive) {
  for (const auto& [name, tensor] : module_tensors(module)) {
    archive.put(name, tensor.detach());
  }
}

}  // namespace tutti::checkpoint

namespace tutti::checkpoint {

TUTTI_INLINE std::string checksum(const torch::nn::Module& module,
                                  const std::vector<std::string>& names) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : module_tensors(module)) {
    tensors.emplace(name, tensor);
  }
  tutti::detail::Xxh64 hash;
  for (const std::string& name : names) {
    const auto found = tensors.find(name);
    TUTTI_CHECK(found != tensors.end(), "checkpoint: the model has no tensor '", name, "'");
    const at::Tensor plain = found->second.detach().cpu().contiguous();
    const std::string head = c10::str(name, ' ', plain.scalar_type(), ' ', plain.sizes(), '\n');
    hash.update(head.data(), head.size());
    if (plain.nbytes() > 0) {
      hash.update(plain.const_data_ptr(), plain.nbytes());
    }
  }
  return hash.text();
}

}  // namespace tutti::checkpoint

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::map<std::string, at::Tensor> named_tensors(const Archive& archive,
                                                             const ModuleLoadOptions& options,
                                                             LoadReport& report) {
  std::map<std::string, at::Tensor> out;
  archive.each_leaf([&](std::string name, const Archive::Leaf& leaf) {
    if (!options.strip_prefix.empty() && name.starts_with(options.strip_prefix)) {
      name.erase(0, options.strip_prefix.size());
    }
    const at::Tensor* tensor = leaf.tensor();
    TUTTI_CHECK(tensor != nullptr, "checkpoint: '", name, "' among the weights is no tensor");
    if (matches_any(options.ignore, options.ignore_prefix + name)) {
      report.ignored.push_back(name);
    } else {
      TUTTI_CHECK(out.emplace(name, *tensor).second, "checkpoint: two weights are named '", name,
                  "' once the prefix '", options.strip_prefix, "' is removed");
    }
  });
  return out;
}

TUTTI_INLINE std::string difference(const at::Tensor& own, const at::Tensor& saved,
                                    const ModuleLoadOptions& options) {
  std::ostringstream out;
  const at::IntArrayRef sizes = options.sizes_in_file ? options.sizes_in_file(own) : own.sizes();
  if (sizes != saved.sizes()) {
    out << "shape " << saved.sizes() << " in the file, " << sizes << " in the model";
  } else if (own.scalar_type() != saved.scalar_type() && !options.convert_dtype) {
    out << "type " << saved.scalar_type() << " in the file, " << own.scalar_type()
        << " in the model; checkpoint::load_module converts with convert_dtype";
  }
  return out.str();
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE LoadReport match_module(const torch::nn::Module& module, const Archive& archive,
                                     const ModuleLoadOptions& options,
                                     std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  LoadReport report;
  auto saved = detail::named_tensors(archive, options, report);
  std::map<const void*, std::pair<std::string, at::Tensor>> sources;  // by tensor object: ties once
  std::vector<std::pair<std::string, at::Tensor>> absent;
  for (const auto& [name, own] : module_tensors(module)) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      absent.emplace_back(name, own);
      continue;
    }
    const at::Tensor source = found->second;
    saved.erase(found);
    std::string reason = detail::difference(own, source, options);
    const auto [first, is_first] = sources.try_emplace(own.unsafeGetTensorImpl(), name, source);
    if (reason.empty() && !is_first && !source.is_meta() && !first->second.second.equal(source)) {
      reason = "tied to " + first->second.first + " in the model, other values in the file";
    }
    if (!reason.empty()) {
      report.mismatched.push_back(name + ": " + reason);
      continue;
    }
    copies.emplace_back(own, source);
    report.loaded.push_back(name);
  }
  for (const auto& [name, own] : absent) {
    if (sources.count(own.unsafeGetTensorImpl()) != 0) {
      continue;
    }
    if (!detail::matches_any(options.ignore, options.ignore_prefix + name)) {
      report.missing.push_back(name);
    } else if (std::find(report.ignored.begin(), report.ignored.end(), name) ==
               report.ignored.end()) {
      report.ignored.push_back(name);
    }
  }
  for (const auto& [name, tensor] : saved) {
    report.unexpected.push_back(name);
  }
  TUTTI_CHECK(report.complete() || !options.strict,
              "checkpoint: the weights do not fit the model:", report.text(),
              "\nLoad with strict = false to take what fits, or ignore names by globs.");
  return report;
}

TUTTI_INLINE LoadReport load_module(torch::nn::Module& module, const Archive& archive,
                                    const ModuleLoadOptions& options) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  LoadReport report = match_module(module, archive, options, copies);
  const c10::AutoGradMode no_grad(false);
  for (auto& [own, source] : copies) {
    own.copy_(source);
  }
  return report;
}

}  // namespace tutti::checkpoint

#endif
