// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/ignore.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE bool IgnoreKeys::matches(std::string_view path) {
  bool any = false;
  for (std::size_t i = 0; i < globs_.size(); ++i) {
    if (glob_matches(globs_[i], path)) {
      matched_[i] = any = true;
    }
  }
  return any;
}

TUTTI_INLINE Archive IgnoreKeys::without(const Archive& archive, const std::string& prefix,
                                         std::vector<std::string>& left_out) {
  Archive out;
  copy(archive, prefix, out, left_out);
  return out;
}

TUTTI_INLINE std::vector<std::string> IgnoreKeys::unmatched() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < globs_.size(); ++i) {
    if (!matched_[i]) {
      out.push_back(globs_[i]);
    }
  }
  return out;
}

TUTTI_INLINE void IgnoreKeys::copy(const Archive& from, const std::string& prefix, Archive& to,
                                   std::vector<std::string>& left_out) {
  for (const auto& entry : from.entries()) {
    std::string path = prefix + entry.name;
    if (matches(path)) {
      left_out.push_back(std::move(path));
    } else if (entry.is_child()) {
      Archive below;
      copy(entry.child(), path + '/', below, left_out);
      if (!below.empty() || entry.child().empty()) {
        to.put(entry.name, std::move(below));
      }
    } else {
      entry.leaf().visit([&](const auto& leaf) { to.put(entry.name, leaf); });
    }
  }
}

TUTTI_INLINE void warn_unmatched(const IgnoreKeys& keys, std::string_view option) {
  for (const std::string& glob : keys.unmatched()) {
    TORCH_WARN(option, ": nothing in the checkpoint matches \"", glob,
               "\"; paths look like state/model/fc.weight, state/optimizers/0, state/policies/EMA, "
               "rng");
  }
}

}  // namespace tutti::checkpoint
