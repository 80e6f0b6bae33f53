// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>

#include <c10/util/Exception.h>

namespace tutti::checkpoint {

/// Globs over the slash-joined paths of a checkpoint: `state/model/fc.weight`, `state/optimizers`.
///
/// A path that a glob matches is left out with all below it, and one below which nothing is left
/// with it; `*` crosses slashes. Which globs matched anything is remembered.
class IgnoreKeys {
 public:
  explicit IgnoreKeys(std::vector<std::string> globs = {})
      : globs_(std::move(globs)), matched_(globs_.size()) {}

  [[nodiscard]] bool empty() const { return globs_.empty(); }

  /// Whether this path is to be left out.
  bool matches(std::string_view path);

  /// The archive without what is to be left out.
  ///
  /// prefix: put before its paths when they are compared, "state/model/". left_out: gets the full
  /// paths that were left out, the topmost where all below went with it.
  Archive without(const Archive& archive, const std::string& prefix,
                  std::vector<std::string>& left_out);

  /// The globs that have matched nothing so far.
  [[nodiscard]] std::vector<std::string> unmatched() const;

 private:
  void copy(const Archive& from, const std::string& prefix, Archive& to,
            std::vector<std::string>& left_out);

  std::vector<std::string> globs_;
  std::vector<bool> matched_;
};

/// Warns of every glob that has matched nothing. option: whose they are, "load_ignore_keys".
void warn_unmatched(const IgnoreKeys& keys, std::string_view option);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/ignore.inl.hpp>
#endif
