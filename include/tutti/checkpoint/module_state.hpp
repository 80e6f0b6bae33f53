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
#include <tutti/core/detail/init_tape.hpp>
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
#include <tutti/checkpoint/module_state.inl.hpp>
#endif
